//! Guests that QEMU paused because a disk failed.
//!
//! Invariant: they continue once the disk works, and what is paused for another reason stays so.
//! Failure: waits have a deadline of paused time.

use std::sync::Arc;

use libvirt::{DiskFailure, Event, FailedDisk, Hypervisor, Pause, Power};
use podspec::{ContainerId, VmUid};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::testkit::{Node, TIMEOUT};
use crate::vm::power::stalled::Attempts;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn vm() -> VmUid {
    VM.parse().unwrap()
}

fn full() -> FailedDisk {
    FailedDisk {
        name: "vda".to_owned(),
        cause: DiskFailure::NoSpace,
    }
}

/// A node with one machine, and the task that resumes guests; time passes by itself.
async fn watched() -> (Node, ContainerId, AbortOnDropHandle<()>) {
    let node = Node::new().await;
    let id = node.started().await;
    let resuming = resuming(&node);
    (node, id, resuming)
}

/// A node with one virtual machine, whose guest QEMU has paused.
async fn stalled_vm() -> (Node, ContainerId) {
    let node = Node::new().await;
    node.make_disk(vm()).await;
    let sandbox = node.annotated("pod", &[("vm-disk", VM)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    node.hypervisor.fail_disk(vm().uuid(), full());
    (node, id)
}

/// The task that resumes guests; time passes by itself.
fn resuming(node: &Node) -> AbortOnDropHandle<()> {
    let resuming = Arc::clone(&node.containers).resume_stalled(node.hypervisor.events());
    tokio::time::pause();
    AbortOnDropHandle::new(tokio::spawn(resuming))
}

/// The guest is left alone although its disk has space again.
async fn stands(node: &Node) {
    let domain = vm().uuid();
    let before = node.hypervisor.resumes(domain);
    let resumed = follow(node, domain, before + 1);
    let in_time = tokio::time::timeout(TIMEOUT * 10, resumed).await;
    assert!(in_time.is_err(), "the guest was resumed");
}

async fn follow(node: &Node, domain: Uuid, times: usize) {
    let mut events = node.hypervisor.events();
    while node.hypervisor.resumes(domain) < times {
        events.recv().await.unwrap();
    }
}

/// Follows the guest until it was resumed so often.
async fn resumed(node: &Node, domain: Uuid, times: usize) {
    let waiting = follow(node, domain, times);
    let in_time = tokio::time::timeout(TIMEOUT * 60, waiting).await;
    in_time.expect("the guest is resumed");
}

#[tokio::test]
async fn a_guest_is_resumed_less_and_less_often_until_its_disk_has_space() {
    let (node, id, _resuming) = watched().await;
    let begun = tokio::time::Instant::now();
    node.hypervisor.fail_disk(id.domain(), full());
    resumed(&node, id.domain(), 6).await;
    assert!(begun.elapsed().as_secs() >= 10 + 20 + 40 + 80 + 160);
    node.hypervisor.mend_disk(id.domain());
    resumed(&node, id.domain(), 7).await;
    let power = node.hypervisor.power(id.domain()).await.unwrap();
    assert_eq!(power, Some(Power::On));
}

#[tokio::test]
async fn a_guest_that_stood_still_when_the_daemon_started_is_resumed() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.fail_disk(id.domain(), full());
    node.hypervisor.mend_disk(id.domain());
    let _resuming = resuming(&node);
    resumed(&node, id.domain(), 1).await;
}

#[tokio::test]
async fn a_guest_that_its_owner_paused_stays_paused() {
    let (node, id, _resuming) = watched().await;
    node.hypervisor.suspend(id.domain()).await.unwrap();
    let mut events = node.hypervisor.events();
    let quiet = tokio::time::timeout(TIMEOUT * 10, async {
        while events.recv().await != Ok(Event::Power(id.domain())) {}
    });
    assert!(quiet.await.is_err(), "no event");
    let power = node.hypervisor.power(id.domain()).await.unwrap();
    assert_eq!(power, Some(Power::Paused(Pause::Asked)));
}

#[tokio::test]
async fn a_guest_that_its_owner_paused_while_its_disk_failed_waits_for_a_request() {
    let (node, id) = stalled_vm().await;
    node.containers.pause(vm()).await.unwrap();
    node.hypervisor.mend_disk(vm().uuid());
    assert!(node.row(&id).held);
    // A daemon that starts again knows it, too.
    let node = node.restarted().await;
    let _resuming = resuming(&node);
    stands(&node).await;
    node.containers.unpause(vm()).await.unwrap();
    let power = node.hypervisor.power(vm().uuid()).await.unwrap();
    assert_eq!(power, Some(Power::On));
    assert!(!node.row(&id).held);
}

/// Its emulator may write to another layer than the record names.
#[tokio::test]
async fn a_guest_is_not_resumed_in_a_merge_before_the_record_says_where_it_writes() {
    let (node, id) = stalled_vm().await;
    let snapshot = vm();
    let change = node.disks.begin_snapshot(vm(), snapshot, true).await;
    let change = change.unwrap();
    node.disks.make_layer(vm(), change).await.unwrap();
    let taken = node.disks.commit_change(vm(), change.layer, false);
    taken.await.unwrap();
    let deleted = node.disks.delete_snapshot_of_chain(vm(), snapshot, &id);
    deleted.await.unwrap();
    let merge = node.disks.merge_in_use(vm()).unwrap();
    node.disks.begin_merge(vm(), merge, &id).await.unwrap();
    node.disks
        .begin_pivot(vm(), merge.layer, true)
        .await
        .unwrap();
    node.hypervisor.mend_disk(vm().uuid());
    let before = node.hypervisor.resumes(vm().uuid());
    let _resuming = resuming(&node);
    stands(&node).await;
    node.disks.end_merge(vm(), merge.layer).await.unwrap();
    resumed(&node, vm().uuid(), before + 1).await;
}

#[tokio::test]
async fn a_guest_that_was_unpaused_in_vain_is_resumed_once_its_disk_has_space() {
    let (node, _) = stalled_vm().await;
    node.containers.pause(vm()).await.unwrap();
    node.containers.unpause(vm()).await.unwrap_err();
    let before = node.hypervisor.resumes(vm().uuid());
    node.hypervisor.mend_disk(vm().uuid());
    let _resuming = resuming(&node);
    resumed(&node, vm().uuid(), before + 1).await;
}

#[tokio::test]
async fn a_paused_guest_whose_memory_is_being_saved_is_left_alone() {
    let (node, id) = stalled_vm().await;
    node.disks.begin_memory(vm(), vec![], true).await.unwrap();
    node.hypervisor.mend_disk(vm().uuid());
    let _resuming = resuming(&node);
    stands(&node).await;
    let row = node.row(&id);
    let mut attempts = Attempts::default();
    node.containers.wake(&row, &mut attempts).await.unwrap();
    assert_eq!(node.hypervisor.resumes(vm().uuid()), 0);
    // The save has failed: the guest waits for space again.
    node.disks.drop_memory(vm()).await.unwrap();
    resumed(&node, vm().uuid(), 1).await;
}
