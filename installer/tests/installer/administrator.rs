//! Files that an administrator, or an upgrade of the node, changes in between.

use crate::node::{K0S, K3S, KUBEADM, Node, assert_same};

const FLAGS: &str = "var/lib/kubelet/kubeadm-flags.env";
const SETTINGS: &str = "opt/vmlet/etc/criproxy.toml";

#[test]
fn another_flag_is_kept() {
    let node = Node::new(KUBEADM);
    let before = node.read(FLAGS);
    node.run("install");
    let changed = node.read(FLAGS).replace("ARGS=\"", "ARGS=\"--v=4 ");
    node.write(FLAGS, &changed);
    let printed = node.run("install");
    assert!(printed.contains("nothing to do"), "{printed}");
    let printed = node.run("withdraw");
    assert!(
        printed.contains("only kubelet's endpoint is restored"),
        "{printed}"
    );
    assert_eq!(node.read(FLAGS), before.replace("ARGS=\"", "ARGS=\"--v=4 "));
}

/// What `kubeadm upgrade node` may do.
#[test]
fn an_endpoint_that_came_back_is_replaced_again() {
    let node = Node::new(KUBEADM);
    node.run("install");
    let upgraded = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\"\n";
    node.write(FLAGS, upgraded);
    node.run("install");
    assert!(node.read(FLAGS).contains("criproxy.sock"));
    node.run("withdraw");
    assert_eq!(node.read(FLAGS), upgraded);
}

#[test]
fn a_file_without_the_endpoint_of_the_proxy_is_left() {
    let node = Node::new(KUBEADM);
    node.run("install");
    node.write(FLAGS, "KUBELET_KUBEADM_ARGS=\"--v=4\"\n");
    let printed = node.run("withdraw");
    assert!(printed.contains("it is left as it is"), "{printed}");
    assert_eq!(node.read(FLAGS), "KUBELET_KUBEADM_ARGS=\"--v=4\"\n");
    assert!(!node.path("opt/vmlet").exists());
}

#[test]
fn a_file_that_names_the_proxy_in_another_way_stops_the_withdrawal() {
    let node = Node::new(KUBEADM);
    node.run("install");
    let installed = node.files();
    node.write(
        FLAGS,
        "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint /run/vmlet/criproxy.sock\"\n",
    );
    let printed = node.fail("withdraw", &[]);
    assert!(
        printed.contains("restore kubelet's endpoint there by hand"),
        "{printed}"
    );
    assert!(node.is_behind_proxy());
    let mut after = node.files();
    after.insert(FLAGS.into(), installed[std::path::Path::new(FLAGS)].clone());
    assert_same(&after, &installed, "after the refusal");
}

#[test]
fn settings_are_the_administrators() {
    let node = Node::new(K3S);
    node.run("install");
    let changed = format!("{}\n[log]\nlevel = \"debug\"\n", node.read(SETTINGS));
    node.write(SETTINGS, &changed);
    node.set_program("second");
    let printed = node.run("install");
    assert!(printed.contains("is the administrator's"), "{printed}");
    assert_eq!(node.read(SETTINGS), changed);
    let printed = node.run("withdraw");
    assert!(printed.contains("criproxy.toml was changed"), "{printed}");
    assert!(printed.contains("/opt/vmlet/etc is not empty"), "{printed}");
    assert_eq!(node.read(SETTINGS), changed);
    assert!(!node.path("opt/vmlet/bin").exists() && !node.path("opt/vmlet/installer").exists());
}

#[test]
fn a_drop_in_with_more_in_it_loses_the_endpoint_only() {
    let node = Node::new(K3S);
    node.run("install");
    node.write(K3S.file, &format!("{}maxPods: 50\n", node.read(K3S.file)));
    let printed = node.run("install");
    assert!(printed.contains("nothing to do"), "{printed}");
    node.run("withdraw");
    let left = node.read(K3S.file);
    assert!(
        left.contains("maxPods: 50") && !left.contains("criproxy.sock"),
        "{left}"
    );
}

#[test]
fn a_command_of_the_administrator_is_not_replaced() {
    let node = Node::new(K0S);
    let folder = "etc/systemd/system/k0sworker.service.d";
    node.write(
        &format!("{folder}/10-env.conf"),
        "[Service]\nEnvironment=A=b\n",
    );
    node.write(&format!("{folder}/old.conf.bak"), "[Service]\nExecStart=\n");
    node.run("install");
    node.run("withdraw");
    assert!(node.path(folder).exists());
    node.write(
        &format!("{folder}/20-command.conf"),
        "[Service]\nExecStart=\nExecStart=/k0s\n",
    );
    let printed = node.fail("install", &[]);
    assert!(
        printed.contains("20-command.conf replaces the command"),
        "{printed}"
    );
}

#[test]
fn another_installation_of_the_proxy_is_not_touched() {
    for (file, text, reason) in [
        (
            "etc/systemd/system/vmlet-criproxy.service",
            "by hand",
            "is not as the installer has left it",
        ),
        (
            "usr/lib/systemd/system/vmlet-criproxy.service",
            "",
            "remove the package vmlet-criproxy",
        ),
        (
            "opt/vmlet/bin/vmlet-criproxy",
            "by hand",
            "is not as the installer has left it",
        ),
        (
            FLAGS,
            "A=\"--container-runtime-endpoint=unix:///run/vmlet/criproxy.sock\"\n",
            "not by this installer",
        ),
    ] {
        let node = Node::new(KUBEADM);
        node.write(file, text);
        let before = node.files();
        let printed = node.fail("install", &[]);
        assert!(printed.contains(reason), "{file}: {printed}");
        assert_same(&node.files(), &before, file);
    }
}
