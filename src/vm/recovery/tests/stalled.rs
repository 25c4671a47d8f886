//! Guests that QEMU paused because a disk failed.
//!
//! Invariant: they continue once the disk works, and what is paused for another reason stays so.
//! Failure: waits have a deadline of paused time.

use std::sync::Arc;

use libvirt::{DiskFailure, Event, FailedDisk, Hypervisor, Pause, Power};
use podspec::ContainerId;
use tokio_util::task::AbortOnDropHandle;

use crate::testkit::{Node, TIMEOUT};

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
    let events = node.hypervisor.events();
    let resuming = Arc::clone(&node.containers).resume_stalled(events);
    tokio::time::pause();
    (node, id, AbortOnDropHandle::new(tokio::spawn(resuming)))
}

/// Follows the guest until it was resumed so often.
async fn resumed(node: &Node, id: &ContainerId, times: usize) {
    let mut events = node.hypervisor.events();
    let waiting = async {
        while node.hypervisor.resumes(id.domain()) < times {
            events.recv().await.unwrap();
        }
    };
    let in_time = tokio::time::timeout(TIMEOUT * 60, waiting).await;
    in_time.expect("the guest is resumed");
}

#[tokio::test]
async fn a_guest_is_resumed_less_and_less_often_until_its_disk_has_space() {
    let (node, id, _resuming) = watched().await;
    let begun = tokio::time::Instant::now();
    node.hypervisor.fail_disk(id.domain(), full());
    resumed(&node, &id, 6).await;
    assert!(begun.elapsed().as_secs() >= 10 + 20 + 40 + 80 + 160);
    node.hypervisor.mend_disk(id.domain());
    resumed(&node, &id, 7).await;
    let power = node.hypervisor.power(id.domain()).await.unwrap();
    assert_eq!(power, Some(Power::On));
}

#[tokio::test]
async fn a_guest_that_stood_still_when_the_daemon_started_is_resumed() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.fail_disk(id.domain(), full());
    node.hypervisor.mend_disk(id.domain());
    let resuming = Arc::clone(&node.containers).resume_stalled(node.hypervisor.events());
    tokio::time::pause();
    let _resuming = AbortOnDropHandle::new(tokio::spawn(resuming));
    resumed(&node, &id, 1).await;
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
