//! An installation from its plan to its end, on each platform.

use rstest::rstest;

use crate::node::{INSTANCE, K0S, K3S, KUBEADM, MICROK8S, Node, Platform, RKE2, assert_same};

const PROXY: &str = "opt/vmlet/bin/vmlet-criproxy";
const UNIT: &str = "etc/systemd/system/vmlet-criproxy.service";
const SETTINGS: &str = "opt/vmlet/etc/criproxy.toml";

#[rstest]
#[case(KUBEADM)]
#[case(INSTANCE)]
#[case(K3S)]
#[case(RKE2)]
#[case(K0S)]
#[case(MICROK8S)]
fn kubelet_goes_behind_the_proxy_and_back(#[case] platform: Platform) {
    let node = Node::new(platform);
    let before = node.files();

    let plan = node.run_with("install", &["--plan"]);
    assert!(
        plan.starts_with(&format!("{}: {}", platform.name, platform.service)),
        "{plan}"
    );
    let restart = format!("systemctl restart {}\n", platform.service);
    assert!(plan.contains(&restart), "{plan}");
    assert!(plan.contains("unix:///run/vmlet/criproxy.sock"), "{plan}");
    assert_same(&node.files(), &before, "after the plan");
    assert!(node.calls().is_empty());

    node.run("install");
    assert!(node.is_behind_proxy());
    assert_eq!(node.running().as_deref(), Some("first"));
    assert!(
        node.read(platform.file)
            .contains("unix:///run/vmlet/criproxy.sock")
    );
    let primary = format!("socket = \"{}\"\n", platform.primary);
    assert!(
        node.read(SETTINGS).contains(&primary),
        "{}",
        node.read(SETTINGS)
    );
    assert!(
        node.read(UNIT)
            .contains(&format!("\nBefore={}\n", platform.service))
    );
    let calls = node.calls();
    assert_eq!(
        calls
            .iter()
            .filter(|call| call.ends_with(platform.service))
            .count(),
        1,
        "{calls:?}"
    );
    node.run("status");

    let installed = node.files();
    let again = node.run("install");
    assert!(again.contains("nothing to do"), "{again}");
    let plan = node.run_with("install", &["--plan"]);
    assert!(plan.contains("nothing to do"), "{plan}");
    assert_same(&node.files(), &installed, "after the second installation");
    assert!(node.calls().is_empty());

    node.set_program("second");
    node.run("install");
    assert_eq!(node.running().as_deref(), Some("second"));
    assert_eq!(node.calls(), ["restart vmlet-criproxy.service"]);
    assert_eq!(node.read(PROXY), "second");

    let plan = node.run_with("withdraw", &["--plan"]);
    assert!(plan.contains(&restart), "{plan}");
    assert!(node.is_behind_proxy() && node.calls().is_empty());
    node.run("withdraw");
    assert!(!node.has("behind"));
    assert_eq!(node.running(), None);
    assert_same(&node.files(), &before, "after the withdrawal");
    let printed = node.run("withdraw");
    assert!(printed.contains("nothing is installed"), "{printed}");
    assert_same(&node.files(), &before, "after the second withdrawal");
}

/// `docs/installer.md` has what an operator of each platform sees.
#[rstest]
#[case(K3S)]
#[case(RKE2)]
#[case(K0S)]
#[case(MICROK8S)]
fn the_page_shows_what_is_printed(#[case] platform: Platform) {
    let page = include_str!("../../../docs/installer.md");
    let printed = Node::new(platform).run("install");
    // The program of the test is a text.
    let printed = printed.replace(
        "write /opt/vmlet/bin/",
        "copy the program to /opt/vmlet/bin/",
    );
    let shown = format!("```text\n{}\n```\n", printed.trim_end());
    assert!(page.contains(&shown), "not in docs/installer.md:\n{shown}");
}

#[test]
fn status_says_what_is_amiss() {
    let node = Node::new(KUBEADM);
    let status = node.fail("status", &[]);
    assert!(status.contains("installed  no"), "{status}");
    node.run("install");
    node.set("ill");
    let status = node.fail("status", &[]);
    assert!(
        status.contains("is not healthy: syncloop failed"),
        "{status}"
    );
    node.unset("ill");
    node.unset("active");
    let status = node.fail("status", &[]);
    assert!(
        status.contains("vmlet-criproxy.service is not active"),
        "{status}"
    );
    // Repeating the installation repairs it.
    node.run("install");
    node.run("status");
}

#[test]
fn the_prefix_is_in_every_path() {
    let node = Node::new(K3S);
    let before = node.files();
    node.run_with("install", &["--prefix", "/var/lib/elsewhere/vmlet"]);
    let unit = node.read(UNIT);
    assert!(
        unit.contains("ExecStart=/var/lib/elsewhere/vmlet/bin/vmlet-criproxy serve"),
        "{unit}"
    );
    assert!(!node.path("opt/vmlet").exists());
    node.run_with("withdraw", &["--prefix", "/var/lib/elsewhere/vmlet"]);
    assert_same(&node.files(), &before, "after the withdrawal");
}
