//! The node's root mounted elsewhere, as in a container.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::node::{KUBEADM, Node};

/// The shell of the node: static, of the package busybox-static.
const BUSYBOX: &str = "/usr/bin/busybox";

#[test]
#[ignore = "needs root"]
fn systemctl_of_the_node_runs_in_its_root() {
    let node = Node::on_disk(KUBEADM);
    fs::create_dir_all(node.path("bin")).unwrap();
    fs::copy(BUSYBOX, node.path("bin/sh")).unwrap();
    let systemctl = "#!/bin/sh\necho \"$SYSTEMD_IGNORE_CHROOT $(pwd) $*\" >>/calls\nexit 1\n";
    node.write("usr/bin/systemctl", systemctl);
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(node.path("usr/bin/systemctl"), mode).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vmlet-installer"))
        .args(["install", "--plan", "--proxy", BUSYBOX, "--root"])
        .arg(node.path(""))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        printed.contains("systemctl enable vmlet-criproxy.service"),
        "{printed}"
    );
    let calls = node.read("calls");
    let expected = "1 / is-enabled --quiet vmlet-criproxy.service\n1 / is-active --quiet vmlet-criproxy.service\n";
    assert_eq!(calls, expected);
}
