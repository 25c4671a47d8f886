use serde_json::{Value, json};

use super::*;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn vm(name: &str, uid: &str, node: Option<&str>) -> VirtualMachine {
    object(json!({
        "metadata": { "name": name, "namespace": "team", "uid": uid, "finalizers": [names::FINALIZER] },
        "spec": { "imageName": "debian", "runStrategy": "Halted" },
        "status": { "printableStatus": "Stopped", "nodeName": node },
    }))
}

fn vm_pod(name: &str, class: &str, of: &str) -> Pod {
    object(json!({
        "metadata": { "name": name, "namespace": "team", "labels": { names::VM_UID_LABEL: of } },
        "spec": { "runtimeClassName": class, "nodeName": "n1", "containers": [] },
    }))
}

fn agent(node: &str, is_alive: bool, disks: Option<u32>) -> Agent {
    Agent {
        node: node.to_owned(),
        namespace: "machines".to_owned(),
        is_alive,
        disks,
        unreadable: None,
    }
}

fn found(machines: &[VirtualMachine], pods: &[Pod], agents: Vec<Agent>) -> Left {
    Left::find(&Seen {
        sets: &[],
        machines,
        backups: &[],
        tasks: &[],
        pods,
        runtime_classes: &["vmlet".to_owned()],
        nodes: ["n1", "n2"].map(str::to_owned).into(),
        agents,
        kinds: Vec::new(),
        now: Timestamp::UNIX_EPOCH,
    })
}

#[test]
fn a_cluster_without_machines_pods_and_disks_is_ready() {
    let other = vm_pod("other", "runc", "");
    let mut left = found(
        &[],
        &[other],
        vec![agent("n1", true, Some(0)), agent("n2", false, None)],
    );
    assert!(!left.is_something());
    let text = left.report(&Purpose::Check);
    assert!(
        text.contains("virtual machines: none") && text.contains("Nothing is left."),
        "{text}"
    );
    left.only_on("n1");
    let text = left.report(&Purpose::Node("n1".to_owned()));
    assert!(
        text.contains("kubectl label node n1 vmlet.dev/node-"),
        "{text}"
    );
}

#[test]
fn each_thing_that_is_left_is_named_in_one_step() {
    let machines = [vm("web", "u1", Some("n1"))];
    let pods = [vm_pod("web", "vmlet", "u1"), vm_pod("plain", "vmlet", "")];
    let left = found(&machines, &pods, vec![agent("n1", true, Some(2))]);
    assert!(left.is_something());
    let text = left.report(&Purpose::Check);
    for line in [
        "virtual machines: 1\n  team/web (Stopped), disk on node n1\n",
        "VM pods without a machine: 1\n  team/plain on node n1\n",
        "disks on nodes: 1\n  n1: 2\n",
        "tasks of nodes: none\n",
        "Do not remove the kinds",
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
}

#[test]
fn a_replica_set_that_makes_machines_is_left_before_them() {
    let set = |replicas: u32| -> VirtualMachineReplicaSet {
        object(json!({
            "metadata": { "name": "farm", "namespace": "team" },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": "farm" } },
                "template": { "metadata": {}, "spec": { "imageName": "debian" } },
            },
        }))
    };
    for (replicas, is_left) in [(2, true), (0, false)] {
        let left = Left::find(&Seen {
            sets: &[set(replicas)],
            machines: &[],
            backups: &[],
            tasks: &[],
            pods: &[],
            runtime_classes: &[],
            nodes: BTreeSet::new(),
            agents: Vec::new(),
            kinds: Vec::new(),
            now: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(left.is_something(), is_left);
        let text = left.report(&Purpose::Check);
        let line = "replica sets: 1\n  team/farm (2 machines)\n";
        assert_eq!(text.starts_with(line), is_left, "{text}");
    }
}

#[test]
fn a_backup_that_a_node_is_to_delete_is_left() {
    let backup = |finalizers: Value| -> VirtualMachineBackup {
        object(json!({
            "metadata": { "name": "b", "namespace": "team", "finalizers": finalizers },
            "spec": { "vmName": "web" },
        }))
    };
    for (finalizers, is_left) in [(json!([names::BACKUP_FINALIZER]), true), (json!([]), false)] {
        let left = Left::find(&Seen {
            sets: &[],
            machines: &[],
            backups: &[backup(finalizers)],
            tasks: &[],
            pods: &[],
            runtime_classes: &[],
            nodes: BTreeSet::new(),
            agents: Vec::new(),
            kinds: Vec::new(),
            now: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(left.is_something(), is_left);
        let text = left.report(&Purpose::Check);
        assert_eq!(
            text.contains("backups: 1\n  team/b of web\n"),
            is_left,
            "{text}"
        );
    }
}

#[test]
fn a_machine_on_a_node_without_an_agent_says_why_its_deletion_waits() {
    let machines = [vm("web", "u1", Some("n2"))];
    for (agents, namespace) in [
        (Vec::new(), "vmlet-system"),
        (vec![agent("n2", false, Some(1))], "machines"),
    ] {
        let text = found(&machines, &[], agents).report(&Purpose::Check);
        assert!(
            text.contains(&format!("kubectl -n {namespace} get pods")),
            "{text}"
        );
        assert!(text.contains("no agent that reports"), "{text}");
        assert!(text.contains("vmlet.dev/node=true"), "{text}");
    }
    // A Node that was deleted took its disks along: the deletion does not wait for it.
    let gone = [vm("web", "u1", Some("n3"))];
    let text = found(&gone, &[], Vec::new()).report(&Purpose::Check);
    assert!(!text.contains("no agent"), "{text}");
}

#[test]
fn disks_that_are_kept_do_not_count_and_are_named_still() {
    let mut left = found(&[], &[], vec![agent("n1", false, Some(1))]);
    assert!(left.is_something());
    left.disks_are_kept = true;
    assert!(!left.is_something());
    let text = left.report(&Purpose::Check);
    assert!(
        text.contains("n1: 1, by the last report") && text.contains("They are kept."),
        "{text}"
    );
}

#[test]
fn disks_whose_records_cannot_be_read_are_left_and_the_way_to_them_is_named() {
    // A node without a machine, a pod or a task: only its agent knows of the disks.
    let left = found(&[], &[], vec![agent("n1", true, Some(2))]);
    assert!(left.is_something());
    let text = left.report(&Purpose::Check);
    assert!(
        text.contains("n1: 2\n") && text.contains("docs/operations.md, Unreadable records"),
        "{text}"
    );
    // An agent that is too old to count them, or that cannot, might have some.
    let left = found(&[], &[], vec![agent("n1", true, None)]);
    assert!(left.is_something());
    let text = left.report(&Purpose::Check);
    assert!(text.contains("see its log"), "{text}");
}

#[test]
fn the_disks_of_a_node_whose_records_cannot_be_read_are_counted_apart() {
    let with = |node: &str, is_alive, unreadable| Agent {
        unreadable,
        ..agent(node, is_alive, Some(3))
    };
    let agents = vec![
        with("n1", true, Some(2)),
        with("n2", false, Some(1)),
        with("n3", true, Some(0)),
        with("n4", true, None),
    ];
    let text = found(&[], &[], agents).report(&Purpose::Check);
    for line in [
        "disks on nodes: 4\n",
        "  n1: 3, 2 of them with a record that cannot be read\n",
        "  n2: 3, 1 of them with a record that cannot be read, by the last report",
        "  n3: 3\n",
        "  n4: 3\n",
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
}

#[test]
fn a_permission_that_stands_is_named_with_the_way_to_take_it_back() {
    let kind = |is_allowed| Kind {
        name: "virtualmachines.vmlet.dev".to_owned(),
        is_going: false,
        is_allowed,
    };
    let report = |machines: &[VirtualMachine], is_allowed| {
        let mut left = found(machines, &[], Vec::new());
        left.kinds = vec![kind(is_allowed)];
        assert_eq!(left.is_allowed(), is_allowed);
        left.report(&Purpose::Check)
    };
    let machines = [vm("web", "u1", None)];
    for machines in [&[][..], &machines] {
        let text = report(machines, true);
        assert!(text.contains("vmletctl uninstall --cancel"), "{text}");
        assert!(!report(machines, false).contains("--cancel"));
    }
    assert!(report(&machines, true).contains("would delete all this"));

    assert!(cancelled(&[kind(true)]).contains("no longer allowed"));
    assert!(cancelled(&[kind(false)]).contains("was not allowed"));
    let going = Kind {
        is_going: true,
        ..kind(true)
    };
    assert!(cancelled(&[going]).contains("being deleted: virtualmachines.vmlet.dev"));
}

#[test]
fn a_node_is_asked_about_alone() {
    let machines = [vm("web", "u1", Some("n1")), vm("db", "u2", Some("n2"))];
    let agents = vec![agent("n1", true, Some(1)), agent("n2", true, Some(1))];
    let mut left = found(&machines, &[], agents);
    left.only_on("n2");
    let text = left.report(&Purpose::Node("n2".to_owned()));
    assert!(
        text.contains("team/db") && !text.contains("team/web"),
        "{text}"
    );
    assert!(text.contains("Leave Vmlet on node n2"), "{text}");
}

#[test]
fn what_waits_for_the_controller_and_names_of_strangers_are_shown_safely() {
    let mut orphan = vm_pod("x", "other", "gone");
    orphan.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    let mut machine = vm("web", "u1", None);
    machine.metadata.finalizers = Some(vec!["example.com/\u{1b}[2J".to_owned()]);
    let left = found(&[machine], &[orphan], Vec::new());
    let text = left.report(&Purpose::Check);
    assert!(
        text.contains("a finalizer that the controller removes"),
        "{text}"
    );
    assert!(
        text.contains("finalizers of others: example.com/") && !text.contains('\u{1b}'),
        "{text}"
    );
}

#[test]
fn a_long_list_is_cut_and_counted() {
    let machines: Vec<_> = (0..25)
        .map(|n| vm(&format!("m{n}"), &format!("u{n}"), None))
        .collect();
    let text = found(&machines, &[], Vec::new()).report(&Purpose::Check);
    assert!(
        text.contains("virtual machines: 25") && text.contains("and 5 more"),
        "{text}"
    );
}
