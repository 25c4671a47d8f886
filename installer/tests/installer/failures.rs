//! Installations that fail, and take themselves back.

use rstest::rstest;

use crate::node::{INSTANCE, K0S, K3S, KUBEADM, MICROK8S, Node, Platform, RKE2, assert_same};

/// Long enough for every wait that succeeds, on a loaded machine, too.
const SOON: [&str; 2] = ["--timeout", "15s"];

#[rstest]
#[case(KUBEADM)]
#[case(INSTANCE)]
#[case(K3S)]
#[case(RKE2)]
#[case(K0S)]
#[case(MICROK8S)]
fn a_kubelet_that_is_not_well_behind_the_proxy_gets_its_runtime_back(#[case] platform: Platform) {
    let node = Node::new(platform);
    let before = node.files();
    node.set("ill-behind");
    let printed = node.fail("install", &SOON);
    assert!(
        printed.contains("kubelet is healthy and connected to the proxy, for 15s"),
        "{printed}"
    );
    assert!(
        printed.contains("is not healthy: syncloop failed"),
        "{printed}"
    );
    assert!(
        printed.contains("failed to install; the node is as it was"),
        "{printed}"
    );
    assert_same(&node.files(), &before, "after the way back");
    assert!(!node.has("behind") && node.running().is_none());
    node.unset("ill-behind");
    node.run("install");
    assert!(node.is_behind_proxy());
}

#[test]
fn kubelet_is_not_touched_while_the_runtime_does_not_answer_the_proxy() {
    let node = Node::new(KUBEADM);
    let before = node.files();
    node.set("runtime-away");
    let printed = node.fail("install", &SOON);
    assert!(
        printed.contains("the runtime refuses: containerd is away"),
        "{printed}"
    );
    let calls = node.calls();
    assert!(
        !calls
            .iter()
            .any(|call| call.ends_with("restart kubelet.service")),
        "{calls:?}"
    );
    assert_same(&node.files(), &before, "after the way back");
}

#[test]
fn kubelet_is_not_touched_while_it_is_not_well() {
    let node = Node::new(KUBEADM);
    let before = node.files();
    node.set("ill");
    let printed = node.fail("install", &SOON);
    assert!(
        printed.contains("wait until kubelet is healthy"),
        "{printed}"
    );
    let calls = node.calls();
    assert!(
        !calls.contains(&"restart kubelet.service".to_owned()),
        "{calls:?}"
    );
    assert_same(&node.files(), &before, "after the way back");
}

/// As a unit of Type=notify does: systemctl waits for it, and so does not end.
#[test]
fn a_service_that_never_becomes_ready_is_taken_back() {
    let node = Node::new(K3S);
    let before = node.files();
    node.set("never-ready");
    let printed = node.fail("install", &SOON);
    let reason = "systemctl restart k3s-agent.service has not ended within 15s";
    assert!(printed.contains(reason), "{printed}");
    assert!(printed.contains("the node is as it was"), "{printed}");
    assert_same(&node.files(), &before, "after the way back");
}

#[test]
fn a_failed_upgrade_leaves_the_earlier_proxy() {
    let node = Node::new(KUBEADM);
    node.run("install");
    let installed = node.files();
    node.set_program("bad");
    let printed = node.fail("install", &SOON);
    assert!(
        printed.contains("the runtime refuses: a bad build"),
        "{printed}"
    );
    assert!(
        printed.contains("failed to install; the node is as it was"),
        "{printed}"
    );
    assert_eq!(node.running().as_deref(), Some("first"));
    let mut after = node.files();
    let journal = "opt/vmlet/installer/journal";
    assert_eq!(node.read(journal).lines().count(), 1);
    after.insert(
        journal.into(),
        installed[std::path::Path::new(journal)].clone(),
    );
    assert_same(&after, &installed, "after the failed upgrade");
    node.run("status");
}

/// kubelet fails for a reason of its own, and the way back has to wait for it.
#[test]
fn a_way_back_that_fails_is_finished_by_the_next_call() {
    let node = Node::new(KUBEADM);
    node.run("install");
    let installed = node.files();
    node.set_program("second");
    node.set("ill");
    let printed = node.fail("install", &SOON);
    assert!(
        printed.contains("failed to install, and to undo it"),
        "{printed}"
    );
    assert_eq!(node.running().as_deref(), Some("first"));
    let status = node.fail("status", &[]);
    assert!(status.contains("was not finished"), "{status}");
    node.unset("ill");
    node.set_program("first");
    node.run("install");
    node.run("status");
    assert_eq!(node.files().len(), installed.len());
}

#[test]
fn a_proxy_in_use_is_not_stopped() {
    let node = Node::new(KUBEADM);
    node.run("install");
    // Something else than kubelet's files names the proxy.
    node.set("stubborn");
    let printed = node.fail("withdraw", &SOON);
    assert!(
        printed.contains("/run/vmlet/criproxy.sock is in use"),
        "{printed}"
    );
    assert!(node.is_behind_proxy());
    node.unset("stubborn");
    node.run("withdraw");
    assert!(node.running().is_none());
}

#[test]
fn a_node_that_is_not_understood_is_not_changed() {
    let node = Node::new(KUBEADM);
    let before = node.files();
    let printed = node.fail("install", &["--platform", "k3s"]);
    assert!(printed.contains("the node does not run k3s"), "{printed}");
    node.write("var/lib/rancher/k3s/agent/kubelet.kubeconfig", "");
    node.write("etc/systemd/system/k3s.service", "");
    let printed = node.fail("install", &[]);
    assert!(
        printed.contains("kubeadm, k3s; give the one that runs with --platform"),
        "{printed}"
    );
    let printed = node.fail("install", &["--platform", "k3s"]);
    assert!(printed.contains("releases before 1.32"), "{printed}");
    node.run_with("install", &["--platform", "kubeadm"]);
    node.run("withdraw");
    let mut after = node.files();
    after.retain(|path, _| before.contains_key(path));
    assert_same(&after, &before, "after the withdrawal");
}
