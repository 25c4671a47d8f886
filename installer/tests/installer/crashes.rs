//! The installer is killed at each of its crash points, and repeated.

use rstest::rstest;

use crate::node::{INSTANCE, K0S, K3S, KUBEADM, MICROK8S, Node, Platform, RKE2, assert_same};

/// More than any command passes.
const MOST: u32 = 500;

/// Kills `command` at each point on a node that `prepare` has made; then `repair` has to lead where it leads
/// without a crash.
fn at_each_point(
    platform: Platform,
    command: &str,
    repair: &str,
    prepare: impl Fn(&Node),
    is_right: impl Fn(&Node, &str),
) {
    let expected = Node::new(platform);
    prepare(&expected);
    if command != repair {
        expected.run(command);
    }
    expected.run(repair);
    let files = expected.files();
    for point in 1..MOST {
        let node = Node::new(platform);
        prepare(&node);
        let is_killed = node.crash(command, point);
        let when = format!("{command} killed at point {point}, then {repair}");
        node.run(repair);
        assert_same(&node.files(), &files, &when);
        is_right(&node, &when);
        if !is_killed {
            assert!(point > 10, "only {point} points");
            return;
        }
    }
    panic!("{command} has more than {MOST} points");
}

fn is_installed(node: &Node, when: &str) {
    assert!(node.is_behind_proxy(), "{when}");
    // Whatever was killed, the program that runs is the one that is installed.
    let program = node.read("opt/vmlet/bin/vmlet-criproxy");
    assert_eq!(node.running(), Some(program), "{when}");
}

fn is_withdrawn(node: &Node, when: &str) {
    assert!(!node.has("behind"), "{when}");
    assert_eq!(node.running(), None, "{when}");
}

#[rstest]
#[case(KUBEADM)]
#[case(INSTANCE)]
#[case(K3S)]
#[case(RKE2)]
#[case(K0S)]
#[case(MICROK8S)]
fn an_installation_that_was_killed_is_finished(#[case] platform: Platform) {
    at_each_point(platform, "install", "install", |_| {}, is_installed);
}

#[rstest]
#[case(KUBEADM)]
#[case(INSTANCE)]
#[case(K3S)]
#[case(RKE2)]
#[case(K0S)]
#[case(MICROK8S)]
fn an_installation_that_was_killed_is_undone(#[case] platform: Platform) {
    at_each_point(platform, "install", "withdraw", |_| {}, is_withdrawn);
}

#[rstest]
#[case(KUBEADM)]
#[case(INSTANCE)]
#[case(K3S)]
#[case(RKE2)]
#[case(K0S)]
#[case(MICROK8S)]
fn a_withdrawal_that_was_killed_is_finished(#[case] platform: Platform) {
    let prepare = |node: &Node| drop(node.run("install"));
    at_each_point(platform, "withdraw", "withdraw", prepare, is_withdrawn);
}

#[rstest]
#[case(KUBEADM)]
#[case(K0S)]
fn a_withdrawal_that_was_killed_is_followed_by_an_installation(#[case] platform: Platform) {
    let prepare = |node: &Node| drop(node.run("install"));
    at_each_point(platform, "withdraw", "install", prepare, is_installed);
}

#[rstest]
#[case("install")]
#[case("withdraw")]
fn an_upgrade_that_was_killed_is_finished_or_undone(#[case] repair: &str) {
    let prepare = |node: &Node| {
        node.run("install");
        node.set_program("second");
    };
    let is_right = match repair {
        "install" => is_installed,
        _ => is_withdrawn,
    };
    at_each_point(KUBEADM, "install", repair, prepare, is_right);
}

/// The way back after a failure is killed, too.
#[test]
fn a_way_back_that_was_killed_is_finished() {
    let before = Node::new(K0S).files();
    for point in 1..MOST {
        let node = Node::new(K0S);
        node.set("ill-behind");
        let armed = node.crash_failing(point);
        node.run("withdraw");
        assert_same(&node.files(), &before, &format!("killed at point {point}"));
        is_withdrawn(&node, "after the withdrawal");
        if !armed {
            return;
        }
    }
    panic!("more than {MOST} points");
}
