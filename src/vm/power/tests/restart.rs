//! Reboot requests: guests that respond, that do not, and that end instead.
//!
//! Invariant: success means that the hypervisor saw the guest boot again.
//! Failure: a test prints how the guest was asked.

use std::time::Duration;

use libvirt::{FakeHypervisor, Shutdown};
use podspec::{ContainerId, VmUid};
use tokio::time::Instant;

use crate::testkit::{Node, TIMEOUT};
use crate::vm::Error;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn vm() -> VmUid {
    VM.parse().unwrap()
}

async fn machine(hypervisor: FakeHypervisor) -> (Node, ContainerId) {
    let node = Node::with(hypervisor).await;
    node.make_disk(vm()).await;
    let sandbox = node.annotated("pod", &[("vm-disk", VM)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    (node, id)
}

fn unresponsive() -> FakeHypervisor {
    FakeHypervisor::default().guest_ignores_shutdown()
}

fn ways(node: &Node) -> Vec<Option<Shutdown>> {
    let all = node.hypervisor.reboots().into_iter();
    all.inspect(|(domain, _)| assert_eq!(*domain, vm().uuid()))
        .map(|(_, how)| how)
        .collect()
}

#[tokio::test]
async fn a_reboot_is_requested_by_agent_or_acpi_until_the_guest_reboots() {
    let with_agent = FakeHypervisor::default().agent_answering([]);
    for (hypervisor, how) in [
        (with_agent, Shutdown::Agent),
        (FakeHypervisor::default(), Shutdown::Acpi),
    ] {
        let (node, _) = machine(hypervisor).await;
        let soon = Instant::now() + TIMEOUT;
        assert!(node.containers.reboot(vm(), soon).await.unwrap());
        node.containers.reset(vm()).await.unwrap();
        assert_eq!(ways(&node), [Some(how), None]);
    }
}

#[tokio::test]
async fn an_unresponsive_guest_gets_requests_until_the_timeout() {
    for (hypervisor, how, times) in [
        (unresponsive(), Shutdown::Acpi, 11),
        (unresponsive().agent_answering([]), Shutdown::Agent, 3),
    ] {
        let (node, _) = machine(hypervisor).await;
        tokio::time::pause();
        let until = Instant::now() + Duration::from_secs(21);
        assert!(!node.containers.reboot(vm(), until).await.unwrap());
        assert!(Instant::now() >= until);
        assert_eq!(ways(&node), vec![Some(how); times]);
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_guest_that_responds_late_is_accepted() {
    let (node, _) = machine(unresponsive()).await;
    let reboot = node.containers.reboot(vm(), Instant::now() + TIMEOUT);
    let later = async {
        while ways(&node).is_empty() {
            tokio::task::yield_now().await;
        }
        // It reboots by itself, or by the hand of an administrator.
        node.containers.reset(vm()).await.unwrap();
    };
    let (done, ()) = tokio::join!(reboot, later);
    assert!(done.unwrap());
}

#[tokio::test]
async fn an_ended_or_stopped_machine_gets_no_more_requests() {
    let (node, id) = machine(unresponsive()).await;
    let reboot = node.containers.reboot(vm(), Instant::now() + TIMEOUT);
    let stop = node.containers.stop(&id, Duration::from_millis(20));
    let (reboot, stopped) = tokio::join!(reboot, stop);
    assert!(matches!(reboot, Err(Error::NotRunning(_))), "{reboot:?}");
    stopped.unwrap();
    let again = node.containers.reboot(vm(), Instant::now() + TIMEOUT);
    assert!(matches!(again.await, Err(Error::NotRunning(_))));
}

#[tokio::test]
async fn a_paused_guest_gets_no_requests() {
    let (node, _) = machine(FakeHypervisor::default()).await;
    node.containers.pause(vm()).await.unwrap();
    let reboot = node.containers.reboot(vm(), Instant::now() + TIMEOUT);
    assert!(matches!(reboot.await, Err(Error::Paused(_))));
    assert!(ways(&node).is_empty());
}

#[tokio::test]
async fn a_guest_whose_disk_fails_is_unpaused_or_says_why_not() {
    let (node, _) = machine(FakeHypervisor::default()).await;
    let disk = libvirt::FailedDisk {
        name: "vdb".to_owned(),
        cause: libvirt::DiskFailure::NoSpace,
    };
    node.hypervisor.fail_disk(vm().uuid(), disk);
    let soon = Instant::now() + TIMEOUT;
    let refusals = [
        node.containers.unpause(vm()).await.err(),
        node.containers.reboot(vm(), soon).await.err(),
        node.containers.shut_down(vm(), soon).await.err(),
    ];
    for refusal in refusals {
        let words = refusal.expect("a refusal").to_string();
        assert!(words.contains("disk vdb: no space left"), "{words}");
    }
    node.hypervisor.mend_disk(vm().uuid());
    tokio::time::pause();
    node.containers.unpause(vm()).await.unwrap();
}
