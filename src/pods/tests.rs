//! Sandboxes on networks that only keep state, with real rows and machines of a fake hypervisor in
//! them.
//!
//! Invariant: each test has a node of its own.
//! Failure: the rule that was broken; waits have a deadline.

use std::sync::Arc;

use libvirt::State;
use podspec::SandboxId;

use super::Error;
use crate::sandbox::state::Phase;
use crate::testkit::{Node, TIMEOUT};
use crate::vm::state::Phase as Machine;

fn phase(node: &Node, id: &SandboxId) -> Option<Phase> {
    node.sandbox_rows.get(id).map(|row| row.phase)
}

#[tokio::test]
async fn a_ready_sandbox_has_a_network_and_leaves_nothing() {
    let node = Node::new().await;
    let id = node.ready().await;
    let row = node.sandboxes.find(&id.as_str()[..13]).unwrap();
    assert_eq!(row.phase, Phase::Ready);
    assert!(row.network.is_some() && row.created_at > 0);
    for _ in 0..2 {
        node.sandboxes.stop(&id).await.unwrap();
        assert_eq!(phase(&node, &id), Some(Phase::Stopped));
        assert!(node.network.ids().is_empty());
    }
    for _ in 0..2 {
        node.sandboxes.remove(&id).await.unwrap();
        assert_eq!(phase(&node, &id), None);
    }
    node.sandboxes.stop(&id).await.unwrap();
}

#[tokio::test]
async fn an_equal_request_is_answered_with_the_same_sandbox_also_at_the_same_time() {
    let node = Node::new().await;
    let run = || node.sandboxes.run(node.pod("pod"));
    let (a, b, c) = tokio::join!(run(), run(), run());
    let id = a.unwrap();
    assert_eq!((b.unwrap(), c.unwrap()), (id.clone(), id.clone()));
    assert_eq!(run().await.unwrap(), id);
    let node = node.restarted().await;
    assert_eq!(node.ready().await, id);
    assert_eq!(node.network.ids(), [id.to_string()]);
}

#[tokio::test]
async fn another_request_for_the_same_attempt_is_refused_in_every_phase() {
    let node = Node::new().await;
    let id = node.ready().await;
    let mut other = node.pod("pod");
    other.hostname = "other".to_owned();
    let refused = node.sandboxes.run(other).await;
    assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
    for phase in [Phase::Stopping, Phase::Stopped, Phase::Removing] {
        node.force_sandbox(&id, phase).await;
        let refused = node.sandboxes.run(node.pod("pod")).await;
        assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
    }
    let mut next = node.pod("pod");
    next.metadata.attempt = 1;
    assert_ne!(node.sandboxes.run(next).await.unwrap(), id);
}

#[tokio::test]
async fn a_network_that_fails_is_undone() {
    let node = Node::new().await;
    node.network.refuse_add(true);
    let refused = node.sandboxes.run(node.pod("pod")).await;
    assert!(matches!(refused, Err(Error::Network { .. })), "{refused:?}");
    assert!(node.sandbox_rows.all().is_empty() && node.network.ids().is_empty());
    node.network.refuse_add(false);
    node.ready().await;
}

#[tokio::test]
async fn what_cannot_be_undone_at_once_is_undone_by_the_next_request_or_the_next_round() {
    for asked_again in [true, false] {
        let node = Node::new().await;
        node.network.hang("pod");
        let sandboxes = Arc::clone(&node.sandboxes);
        let pod = node.pod("pod");
        let run = tokio::spawn(async move { sandboxes.run(pod).await });
        until(|| !node.network.ids().is_empty()).await;
        node.network.set_away(true);
        node.network.go_on();
        run.await.unwrap().unwrap_err();
        let left = node.sandbox_rows.all();
        assert_eq!(left[0].phase, Phase::Creating);
        assert!(node.sandboxes.list().is_empty(), "clients do not see it");
        node.sandboxes.reconcile().await.unwrap_err();

        node.network.set_away(false);
        if asked_again {
            let id = node.ready().await;
            assert_eq!(node.network.ids(), [id.to_string()]);
        } else {
            node.sandboxes.reconcile().await.unwrap();
            assert!(node.network.ids().is_empty());
        }
        assert_eq!(phase(&node, &left[0].id), None);
    }
}

#[tokio::test]
async fn a_network_that_cannot_be_taken_down_keeps_the_sandbox_visible_and_not_ready() {
    let node = Node::new().await;
    let id = node.ready().await;
    node.network.refuse_del(&id);
    for _ in 0..2 {
        node.sandboxes.stop(&id).await.unwrap_err();
        node.sandboxes.remove(&id).await.unwrap_err();
        assert_eq!(
            node.sandboxes.find(id.as_str()).unwrap().phase,
            Phase::Stopping
        );
    }
    node.network.accept_del();
    node.sandboxes.remove(&id).await.unwrap();
    assert_eq!(phase(&node, &id), None);
}

#[tokio::test]
async fn stopping_a_sandbox_kills_its_machine_and_removing_it_removes_everything() {
    let node = Node::new().await;
    let container = node.started().await;
    let id = node.row(&container).sandbox.clone();
    node.sandboxes.stop(&id).await.unwrap();
    assert_eq!(node.phase(&container), Machine::Exited);
    assert_eq!(node.exit(&container).0, 137);
    assert!(node.containers.paths().root_disk(&id).exists());
    node.sandboxes.remove(&id).await.unwrap();
    assert!(node.rows.all().is_empty() && node.files().is_empty());
    assert!(node.images.owners().is_empty());
}

#[tokio::test]
async fn a_sandbox_whose_machine_cannot_be_stopped_keeps_its_network() {
    let node = Node::new().await;
    let container = node.started().await;
    let id = node.row(&container).sandbox.clone();
    node.hypervisor.disconnect();
    let refused = node.sandboxes.stop(&id).await;
    assert!(matches!(refused, Err(Error::Guests { .. })), "{refused:?}");
    assert_eq!(phase(&node, &id), Some(Phase::Stopping));
    assert_eq!(node.network.ids(), [id.to_string()]);
    node.hypervisor.reconnect();
    node.sandboxes.reconcile().await.unwrap();
    assert_eq!(phase(&node, &id), Some(Phase::Stopped));
    assert_eq!(node.phase(&container), Machine::Exited);
}

#[tokio::test]
async fn a_round_finishes_what_was_begun_and_leaves_alone_what_is_well() {
    let node = Node::new().await;
    let begun = [
        (Phase::Creating, None),
        (Phase::Ready, Some(Phase::Ready)),
        (Phase::Stopping, Some(Phase::Stopped)),
        (Phase::Stopped, Some(Phase::Stopped)),
        (Phase::Removing, None),
    ];
    let mut expected = Vec::new();
    for (phase, after) in begun {
        let id = node.sandboxes.run(node.pod(phase.as_str())).await.unwrap();
        node.force_sandbox(&id, phase).await;
        expected.push((id, after));
    }
    let node = node.restarted().await;
    node.sandboxes.reconcile().await.unwrap();
    for (id, after) in expected {
        assert_eq!(phase(&node, &id), after);
    }
}

#[tokio::test]
async fn a_sandbox_that_lost_its_network_is_stopped_with_its_machine() {
    let node = Node::new().await;
    let container = node.started().await;
    let id = node.row(&container).sandbox.clone();
    node.network.lose(&id);
    node.sandboxes.reconcile().await.unwrap();
    assert_eq!(phase(&node, &id), Some(Phase::Stopped));
    assert_ne!(node.domain(&container).await, Some(State::Active));
}

#[tokio::test]
async fn one_sandbox_that_fails_keeps_no_other_waiting() {
    let node = Node::new().await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let id = node.sandboxes.run(node.pod(name)).await.unwrap();
        node.force_sandbox(&id, Phase::Stopping).await;
        ids.push(id);
    }
    ids.sort();
    node.network.refuse_del(&ids[0]);
    node.sandboxes.reconcile().await.unwrap_err();
    let phases: Vec<_> = ids.iter().filter_map(|id| phase(&node, id)).collect();
    assert_eq!(phases, [Phase::Stopping, Phase::Stopped, Phase::Stopped]);
}

#[tokio::test]
async fn unowned_networks_are_removed_and_one_in_creation_is_kept() {
    let node = Node::new().await;
    let kept = node.ready().await;
    node.sandboxes.reconcile().await.unwrap();
    assert_eq!(node.network.collections(), 1, "once after the start");
    node.network.plant("unowned");
    node.network.hang("slow");
    let sandboxes = Arc::clone(&node.sandboxes);
    let slow = node.pod("slow");
    let run = tokio::spawn(async move { sandboxes.run(slow).await });
    until(|| node.network.ids().len() == 3).await;

    let round = tokio::time::timeout(TIMEOUT, node.sandboxes.reconcile()).await;
    round
        .expect("the round does not wait for the slow one")
        .unwrap();
    let other = node.sandboxes.run(node.pod("other"));
    let other = tokio::time::timeout(TIMEOUT, other).await;
    let other = other.expect("not even another pod").unwrap();

    node.network.go_on();
    let slow = run.await.unwrap().unwrap();
    node.sandboxes.reconcile().await.unwrap();
    let mut ids = [kept, other, slow].map(|id| id.to_string());
    ids.sort();
    assert_eq!(node.network.ids(), ids);
    node.sandboxes.reconcile().await.unwrap();
    assert_eq!(node.network.collections(), 2, "no more without a reason");
}

/// Lets everything else run until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting)
        .await
        .expect("in time");
}
