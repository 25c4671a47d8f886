use super::*;

/// No cluster can be reached by it.
const NO_CLUSTER: [&str; 2] = ["--kubeconfig", "/nonexistent/kubeconfig"];

fn arguments(arguments: &[&str]) -> Vec<OsString> {
    arguments.iter().map(OsString::from).collect()
}

fn fake() -> Names {
    Arc::new(|kind| {
        let kind = format!("{kind:?}").to_lowercase();
        vec![format!("{kind}-a"), format!("{kind}-b")]
    })
}

/// What is offered for the last word.
fn offered(line: &[&str], names: &Names) -> Vec<String> {
    let line = arguments(&[&["vmletctl"], line].concat());
    let index = line.len() - 1;
    let found = complete(&mut described(&line, names), line, index, None).unwrap();
    let values = found.iter().map(|c| c.get_value().to_string_lossy());
    values.map(Into::into).collect()
}

#[test]
fn names_of_machines_are_offered_to_all_verbs_that_take_them() {
    for verb in [
        "status",
        "describe",
        "events",
        "start",
        "stop",
        "restart",
        "suspend",
        "resume",
        "pause",
        "unpause",
        "delete",
        "logs",
        "snapshot",
        "snapshots",
        "revert",
        "clone",
        "export",
        "publish",
    ] {
        let all = offered(&[verb, ""], &fake());
        assert_eq!(all, ["machine-a", "machine-b"], "{verb}");
        assert_eq!(offered(&[verb, "machine-b"], &fake()), ["machine-b"]);
    }
    let snapshots = offered(&["revert", "x", ""], &fake());
    assert_eq!(snapshots, ["snapshot-a", "snapshot-b"]);
    for verb in ["export", "publish"] {
        let snapshots = offered(&[verb, "x", "--snapshot", ""], &fake());
        assert_eq!(snapshots, ["snapshot-a", "snapshot-b"], "{verb}");
        let backups = offered(&[verb, "--backup", ""], &fake());
        assert_eq!(backups, ["backup-a", "backup-b"], "{verb}");
    }
    for verb in [&["backup", "verify", ""][..], &["restore", ""]] {
        assert_eq!(offered(verb, &fake()), ["backup-a", "backup-b"], "{verb:?}");
    }
    for verb in ["create", "list"] {
        let all = offered(&["backup", verb, ""], &fake());
        assert_eq!(all, ["machine-a", "machine-b"], "{verb}");
    }
    let second = offered(&["stop", "x", "machine-a"], &fake());
    assert_eq!(second, ["machine-a"]);
}

#[test]
fn groups_and_their_members_are_offered() {
    for verb in ["status", "start", "stop", "suspend", "add", "remove"] {
        let all = offered(&["group", verb, ""], &fake());
        assert_eq!(all, ["group-a", "group-b"], "{verb}");
    }
    for verb in ["add", "remove"] {
        let all = offered(&["group", verb, "shop", ""], &fake());
        assert_eq!(all, ["machine-a", "machine-b"], "{verb}");
    }
}

#[test]
fn a_login_keeps_its_user() {
    let all = offered(&["ssh", "root@"], &fake());
    assert_eq!(all, ["root@login-a", "root@login-b"]);
    assert_eq!(offered(&["ssh", "login-a"], &fake()), ["login-a"]);
}

#[test]
fn values_of_options_are_offered() {
    let create = |option| offered(&["create", "vm", "web", option, ""], &fake());
    assert_eq!(create("--image"), ["image-a", "image-b"]);
    assert_eq!(create("--class"), ["class-a", "class-b"]);
    assert_eq!(
        create("--storage-class"),
        ["storageclass-a", "storageclass-b"]
    );
    for line in [
        &["image", "upload", "f", "--node", ""][..],
        &["recover", "--node", ""],
        &["import", "f", "--node", ""],
    ] {
        assert_eq!(offered(line, &fake()), ["node-a", "node-b"], "{line:?}");
    }
    let context = offered(&["list", "--context", ""], &fake());
    assert_eq!(context, ["context-a", "context-b"]);
    let pulled = offered(&["image", "pull", ""], &fake());
    assert_eq!(pulled, ["image-a", "image-b"]);
    for line in [
        &["-n", ""][..],
        &["list", "--namespace", ""],
        &["image", "list", "-n", ""],
        &["logs", "web", "-n", "namespace"],
    ] {
        let all = offered(line, &fake());
        assert_eq!(all, ["namespace-a", "namespace-b"], "{line:?}");
    }
}

#[test]
fn a_node_has_names_of_its_own() {
    for line in [&["node", "stop", ""][..], &["rm", ""]] {
        assert_eq!(offered(line, &fake()), ["pod-a", "pod-b"], "{line:?}");
    }
    for line in [
        &["node", "logs", "-n", ""][..],
        &["node", "console", "-n", ""],
    ] {
        let all = offered(line, &fake());
        assert!(all.iter().all(|word| word.starts_with('-')), "{line:?}");
    }
}

#[test]
fn options_stay_behind_until_one_is_begun() {
    assert_eq!(offered(&["st"], &fake()), ["status", "start", "stop"]);
    assert_eq!(offered(&["desc"], &fake()), ["describe"]);
    let verbs = offered(&[""], &fake());
    assert!(verbs.contains(&"image".into()) && !verbs.contains(&"--help".into()));
    let options = offered(&["logs", "--t"], &fake());
    assert_eq!(options, ["--tail", "--timestamps"]);
}

#[test]
fn without_a_cluster_no_name_is_offered_and_nothing_fails() {
    for line in [
        &["status", ""][..],
        &["ssh", "root@"],
        &["create", "vm", "web", "--image", ""],
        &["create", "vm", "web", "--class", ""],
        &["list", "-n", ""],
    ] {
        let line = [&NO_CLUSTER[..], line].concat();
        let all = offered(&line, &names_for(&arguments(&line)));
        assert!(all.iter().all(|word| word.starts_with('-')), "{line:?}");
    }
}

#[test]
fn kubectl_gets_lines_and_a_directive() {
    let answer = |line: &[&str]| {
        let line = arguments(&[&["/bin/kubectl_complete-vmlet"], line].concat());
        for_kubectl(line, &fake())
    };
    assert_eq!(answer(&["status", ""]), "machine-a\nmachine-b\n:4\n");
    assert_eq!(answer(&["status", "x"]), ":4\n");
    assert_eq!(
        answer(&["list", "--namespace=namespace-b"]),
        "namespace-b\n:4\n"
    );
    let none: Names = Arc::new(|_| Vec::new());
    assert_eq!(for_kubectl(arguments(&["x", "status", ""]), &none), ":4\n");
    let verbs = answer(&["res"]);
    assert!(
        verbs.starts_with("restart\tRestart virtual machines"),
        "{verbs}"
    );
    assert!(verbs.contains("\nresume\tResume"), "{verbs}");
    assert!(answer(&[]).contains("status\t"));
}
