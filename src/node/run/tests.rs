//! Tasks that are stopped at an awkward moment.
//!
//! Invariant: the attempt is polled by hand, so that the moment is always the same.
//! Failure: waits have a deadline and panic after it.

use futures_util::poll;

use super::*;
use crate::node::tests::{agenda, uid};
use crate::testbed::{Node, PATIENCE};

fn task(image: String) -> Task {
    Task {
        uid: uid(1),
        vm: uid(9),
        work: Work::Provision {
            image,
            url: None,
            size: 0,
            linked: true,
            name: String::new(),
        },
        state: State::Running,
        cancelled: false,
        percent: 0,
        failure: None,
        image: None,
        order: 1,
        created_at: 0,
        started_at: 0,
        completed_at: 0,
    }
}

/// Stops an attempt that waits for the database while it has the turn to write records of disks.
async fn stop(node: &Node, task: &Task) {
    let (agenda, cancel) = (agenda(node).await, CancellationToken::new());
    let held = node.hold_writes().await;
    let mut attempt = Box::pin(agenda.attempt(task, &cancel));
    // Nobody else gets the turn then.
    while poll!(Box::pin(node.disks.undo(uid(7)))).is_ready() {
        assert!(poll!(&mut attempt).is_pending());
        tokio::task::yield_now().await;
    }
    cancel.cancel();
    assert!(poll!(&mut attempt).is_pending(), "it is not undone yet");
    drop(held);
    let ended = timeout(PATIENCE, attempt).await;
    assert!(ended.expect("it ends").is_none());
}

#[tokio::test]
async fn a_provision_that_is_stopped_while_it_is_recorded_leaves_nothing() {
    let node = Node::new().await;
    stop(&node, &task(node.image("disk"))).await;
    let node = node.restarted().await;
    assert!(node.disks.get(uid(9)).is_none());
}

#[tokio::test]
async fn a_provision_that_is_stopped_while_it_changes_its_record_is_undone() {
    let node = Node::new().await;
    let task = task(node.image("absent"));
    let Work::Provision { image, .. } = &task.work else {
        unreachable!()
    };
    let wish = Wish {
        vm: uid(9),
        name: String::new(),
        image: image.clone(),
        url: None,
        size: 0,
        linked: true,
    };
    node.disks.make(&wish, |_| {}).await.unwrap_err();
    let owner = format!("vm-{}", uid(9));
    node.images.pin(&owner, &node.image("disk")).await.unwrap();
    // The next step is to record which image it is.
    stop(&node, &task).await;
    let node = node.restarted().await;
    assert!(node.disks.get(uid(9)).is_none());
    assert!(node.images.pinned(&owner).is_none());
}
