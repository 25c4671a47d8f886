//! Saved memory that is discarded while its guest returns from it.
//!
//! Invariant: a guest that is back runs, and memory that was discarded is never run.
//! Failure: a test names the guest that is paused, or the memory that was used.

use libvirt::{Event, FakeHypervisor, Hypervisor, Power};
use podspec::{ContainerId, VmUid};

use crate::disk;
use crate::testkit::{Node, TIMEOUT};
use crate::vm::state::Phase;
use crate::vm::{Error, Result};

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn vm() -> VmUid {
    VM.parse().unwrap()
}

async fn power(node: &Node) -> Option<Power> {
    node.hypervisor.power(vm().uuid()).await.unwrap()
}

/// A suspended machine, and the container that is to resume it.
async fn suspended() -> (Node, ContainerId) {
    suspended_with(FakeHypervisor::default()).await
}

async fn suspended_with(hypervisor: FakeHypervisor) -> (Node, ContainerId) {
    let node = Node::with(hypervisor).await;
    node.make_disk(vm()).await;
    let sandbox = node.annotated("first", &[("vm-disk", VM)]).await;
    let first = node.containers.create(&sandbox, node.machine(0)).await;
    let first = first.unwrap();
    node.containers.start(&first).await.unwrap();
    node.containers.save(vm()).await.unwrap();
    let changes = &mut node.disks.changes();
    while node.disks.is_held_by(vm(), &first) {
        changes.changed().await.unwrap();
    }
    let restore = [("vm-disk", VM), ("restore", "true")];
    let sandbox = node.annotated("second", &restore).await;
    let second = node.containers.create(&sandbox, node.machine(0)).await;
    (node, second.unwrap())
}

/// Starts the container while restores are held; returns when libvirt has begun.
async fn begun(node: &Node, id: &ContainerId) -> tokio::task::JoinHandle<Result<()>> {
    let mut events = node.hypervisor.events();
    let containers = node.containers.clone();
    let id = id.clone();
    let start = tokio::spawn(async move { containers.start(&id).await });
    let begins = async { while events.recv().await.unwrap() != Event::Started(vm().uuid()) {} };
    tokio::time::timeout(TIMEOUT, begins).await.unwrap();
    start
}

fn killed() -> Event {
    Event::Stopped(vm().uuid(), libvirt::End::Destroyed)
}

fn is_restoring(refused: &Error, id: &ContainerId) -> bool {
    let named =
        matches!(refused, Error::VmDisk(disk::Error::Restoring { holder, .. }) if holder == id);
    named && refused.is_transient()
}

#[tokio::test]
async fn memory_that_a_guest_comes_back_from_is_not_discarded_and_the_guest_runs() {
    let (node, second) = suspended().await;
    let hold = node.hypervisor.hold_restores().await;
    let start = begun(&node, &second).await;
    let refused = node.containers.restore(vm(), true).await.unwrap_err();
    assert!(is_restoring(&refused, &second), "{refused}");
    assert!(node.disks.get(vm()).unwrap().has_memory());
    drop(hold);
    start.await.unwrap().unwrap();
    assert_eq!(node.phase(&second), Phase::Running);
    assert_eq!(power(&node).await, Some(Power::On));
    node.containers.restore(vm(), true).await.unwrap();
}

#[tokio::test]
async fn a_restore_that_waits_for_its_turn_ends_with_the_stop_of_its_pod() {
    let (node, second) = suspended().await;
    let hold = node.hypervisor.hold_restore_turns().await;
    let containers = node.containers.clone();
    let id = second.clone();
    let start = tokio::spawn(async move { containers.start(&id).await });
    node.until(&second, |row| row.phase == Phase::Starting)
        .await;
    let stop = node.containers.request_stop(&node.row(&second).sandbox);
    let ended = tokio::time::timeout(TIMEOUT, start).await;
    let ended = ended.expect("the stop waits for the turn").unwrap();
    assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
    assert_eq!(node.phase(&second), Phase::Created);
    assert!(node.disks.get(vm()).unwrap().has_memory());
    drop((stop, hold));
    node.containers.start(&second).await.unwrap();
    assert_eq!(power(&node).await, Some(Power::On));
}

#[tokio::test]
async fn a_restore_that_has_begun_ends_with_the_stop_of_its_pod_and_keeps_its_memory() {
    let (node, second) = suspended().await;
    let hold = node.hypervisor.hold_restores().await;
    let start = begun(&node, &second).await;
    let stop = node.containers.request_stop(&node.row(&second).sandbox);
    let ended = tokio::time::timeout(TIMEOUT, start).await;
    let ended = ended.expect("the stop waits for the restore").unwrap();
    assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
    assert_eq!(node.phase(&second), Phase::Created);
    assert!(node.disks.get(vm()).unwrap().has_memory());
    drop((stop, hold));
    node.containers.start(&second).await.unwrap();
    assert_eq!(power(&node).await, Some(Power::On));
}

#[tokio::test]
async fn memory_whose_restore_ends_while_its_pod_is_stopped_is_not_used_up() {
    let (node, second) = suspended_with(FakeHypervisor::default().restores_outlive_kills()).await;
    let hold = node.hypervisor.hold_restores().await;
    let start = begun(&node, &second).await;
    let stop = node.containers.request_stop(&node.row(&second).sandbox);
    let mut events = node.hypervisor.events();
    let killed = async { while events.recv().await.unwrap() != killed() {} };
    tokio::time::timeout(TIMEOUT, killed).await.unwrap();
    drop(hold);
    let ended = tokio::time::timeout(TIMEOUT, start).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
    assert_eq!(node.phase(&second), Phase::Created);
    assert!(node.disks.get(vm()).unwrap().has_memory());
    drop(stop);
    node.containers.start(&second).await.unwrap();
    assert_eq!(power(&node).await, Some(Power::On));
}

#[tokio::test]
async fn a_start_behind_a_discard_finds_no_memory() {
    let (node, second) = suspended().await;
    let hold = node.locks.lock(node.row(&second).sandbox.as_str()).await;
    let mut discard = Box::pin(node.containers.restore(vm(), true));
    assert!(futures_util::poll!(&mut discard).is_pending());
    let (discarded, started) = tokio::join!(discard, async {
        drop(hold);
        node.containers.start(&second).await
    });
    discarded.unwrap();
    let refused = started.unwrap_err();
    assert!(matches!(refused, Error::VmDisk(disk::Error::NoMemory(_))));
    assert_eq!(node.phase(&second), Phase::Created);
    assert!(!node.disks.memory_file(vm()).exists());
}

#[tokio::test]
async fn a_discard_behind_a_start_is_refused() {
    let (node, second) = suspended().await;
    let hold = node.locks.lock(node.row(&second).sandbox.as_str()).await;
    let containers = node.containers.clone();
    let id = second.clone();
    let start = tokio::spawn(async move { containers.start(&id).await });
    // Each lets every task go as far as it can: the start comes to wait.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let mut discard = Box::pin(node.containers.restore(vm(), true));
    assert!(futures_util::poll!(&mut discard).is_pending());
    drop(hold);
    let refused = discard.await.unwrap_err();
    assert!(is_restoring(&refused, &second), "{refused}");
    start.await.unwrap().unwrap();
    assert_eq!(power(&node).await, Some(Power::On));
}

/// A daemon that ended between a restore and its record.
async fn cut_short() -> (Node, ContainerId) {
    let (node, second) = suspended().await;
    node.containers.start(&second).await.unwrap();
    node.disks.begin_memory(vm(), vec![], false).await.unwrap();
    std::fs::write(node.disks.unfinished_memory(vm()), "LibvirtQemudSave").unwrap();
    assert!(node.disks.settle_memory(vm()).await.unwrap());
    node.hypervisor.suspend(vm().uuid()).await.unwrap();
    node.force(&second, |row| row.phase = Phase::Starting).await;
    (node.restarted().await, second)
}

#[tokio::test]
async fn a_stop_of_a_restored_guest_that_has_not_run_keeps_its_memory() {
    let (node, second) = cut_short().await;
    let stopped = node.containers.stop(&second, TIMEOUT);
    let stopped = tokio::time::timeout(TIMEOUT, stopped).await;
    stopped.unwrap().unwrap();
    assert_eq!(node.phase(&second), Phase::Created);
    assert!(node.disks.get(vm()).unwrap().has_memory());
    node.containers.start(&second).await.unwrap();
    assert_eq!(power(&node).await, Some(Power::On));
}

#[tokio::test]
async fn a_guest_whose_restore_was_cut_short_runs_although_its_memory_is_to_be_discarded() {
    let (node, second) = cut_short().await;
    let refused = node.containers.restore(vm(), true).await.unwrap_err();
    assert!(is_restoring(&refused, &second), "{refused}");
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.phase(&second), Phase::Running);
    assert_eq!(power(&node).await, Some(Power::On));
    assert!(node.disks.get(vm()).unwrap().memory.is_none());
}

#[tokio::test]
async fn a_guest_that_came_back_from_memory_that_is_gone_never_runs() {
    let (node, second) = suspended().await;
    let hold = node.hypervisor.hold_restores().await;
    let start = begun(&node, &second).await;
    node.disks.drop_memory(vm()).await.unwrap();
    drop(hold);
    let refused = start.await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::VmDisk(disk::Error::NoMemory(_))));
    assert_eq!(node.phase(&second), Phase::Exited);
    assert_eq!(power(&node).await, None);
}

#[tokio::test]
async fn what_a_guest_comes_back_from_is_not_taken_for_the_save_of_it() {
    let (node, second) = suspended().await;
    let hold = node.hypervisor.hold_restores().await;
    let start = begun(&node, &second).await;
    let refused = node.containers.save(vm()).await.unwrap_err();
    assert!(matches!(refused, Error::NotRunning(_)), "{refused}");
    drop(hold);
    start.await.unwrap().unwrap();
    node.containers.save(vm()).await.unwrap();
    assert!(node.disks.get(vm()).unwrap().has_memory());
}
