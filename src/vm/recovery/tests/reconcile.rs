//! Rows in every phase in which a daemon may have ended, and what becomes of them.
//!
//! Invariant: what runs is adopted, what ended is recorded as it ended, what was half done is
//! settled.
//! Failure: the phase that was not settled.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{FakeHypervisor, Hypervisor, State};
use podspec::ContainerId;
use service::boot_clock::Deadline;

use crate::clock;
use crate::testkit::{Node, TIMEOUT};
use crate::vm::state::Phase;

/// A node after a restart, with one row in this phase whose machine runs.
async fn with_running(phase: Phase) -> (Node, ContainerId) {
    let node = Node::with(FakeHypervisor::default().guest_ignores_shutdown()).await;
    let id = node.started().await;
    node.force(&id, |row| row.phase = phase).await;
    (node.restarted().await, id)
}

/// The same, whose machine never ran.
async fn with_created(phase: Phase) -> (Node, ContainerId) {
    let node = Node::new().await;
    let id = node.created().await;
    node.force(&id, |row| row.phase = phase).await;
    (node.restarted().await, id)
}

#[tokio::test]
async fn a_machine_that_runs_is_adopted_and_its_console_followed() {
    for phase in [Phase::Starting, Phase::Running] {
        let (node, id) = with_running(phase).await;
        node.containers.reconcile().await.unwrap();
        assert_eq!(node.phase(&id), Phase::Running, "from {phase}");
        assert!(node.row(&id).started_at > 0);
        node.prints(&id, "still here\n");
        node.logged(&id, "still here").await;
    }
}

#[tokio::test]
async fn a_machine_that_ended_unseen_is_recorded_as_it_ended() {
    for phase in [Phase::Starting, Phase::Running, Phase::Stopping] {
        let (mut node, id) = with_running(phase).await;
        node.lose_events();
        node.hypervisor.power_off(id.domain());
        node.containers.reconcile().await.unwrap();
        assert_eq!(node.exit(&id), (0, "Completed".to_owned()), "from {phase}");
        assert!(node.row(&id).started_at > 0);
        assert_eq!(node.domain(&id).await, None);
    }
}

#[tokio::test]
async fn a_machine_unknown_to_libvirt_has_ended() {
    let (node, id) = with_running(Phase::Running).await;
    node.hypervisor.lose(id.domain());
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

#[tokio::test]
async fn a_kill_that_is_overdue_comes_at_once() {
    let (node, id) = with_running(Phase::Stopping).await;
    node.force(&id, |row| {
        row.kill_at = Some(Deadline::after(Duration::ZERO))
    })
    .await;
    node.containers.reconcile().await.unwrap();
    node.until(&id, |row| row.phase == Phase::Exited).await;
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

/// An earlier version recorded kills by the wall clock.
#[tokio::test]
async fn a_stop_of_an_earlier_version_keeps_its_grace() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (node, id) = with_running(Phase::Stopping).await;
    let wall = clock::from_now(HOUR);
    let row = id.clone();
    let write = move |t: &rusqlite::Transaction<'_>| {
        let set = "UPDATE containers SET kill_at = ?1, kill_by = NULL WHERE id = ?2";
        t.execute(set, rusqlite::params![wall, row.as_str()])
    };
    assert_eq!(node.db.write(write).await.unwrap(), 1);
    let before = clock::until(wall);
    let node = node.restarted().await;
    let read = node.row(&id).kill_at.expect("a deadline").left();
    assert!(!read.is_zero() && read <= before, "{read:?} of {before:?}");
    node.force(&id, |row| row.oom_kills = 1).await;
    let node = node.restarted().await;
    let again = node.row(&id).kill_at.expect("a deadline").left();
    assert!(again <= read && !again.is_zero(), "{again:?}");
}

#[tokio::test]
async fn a_start_that_was_cut_short_is_undone() {
    let (node, id) = with_created(Phase::Starting).await;
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.phase(&id), Phase::Created);
    node.containers.start(&id).await.unwrap();
}

#[tokio::test]
async fn the_next_start_settles_one_that_was_cut_short() {
    let (node, id) = with_running(Phase::Starting).await;
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
    assert_eq!(node.network.starts().len(), 1, "it runs already");
    let (node, id) = with_created(Phase::Starting).await;
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
}

#[tokio::test]
async fn what_was_being_made_or_removed_goes() {
    for phase in [Phase::Creating, Phase::Removing] {
        let (node, id) = with_created(phase).await;
        node.containers.reconcile().await.unwrap();
        assert!(node.rows.get(&id).is_none(), "from {phase}");
    }
}

#[tokio::test]
async fn a_machine_that_runs_against_all_expectation_is_ended_and_its_row_stays() {
    for phase in [Phase::Created, Phase::Exited] {
        let (node, id) = with_running(phase).await;
        node.containers.reconcile().await.unwrap();
        assert_eq!(node.phase(&id), phase);
        assert_eq!(node.domain(&id).await, None, "under {phase}");
    }
}

#[tokio::test]
async fn a_key_in_work_is_skipped_without_waiting() {
    let (node, id) = with_created(Phase::Creating).await;
    let held = node.locks.lock(node.row(&id).sandbox.as_str()).await;
    let round = tokio::time::timeout(TIMEOUT, node.containers.reconcile()).await;
    let complete = round.expect("the round ends").unwrap();
    assert!(!complete, "no round would follow soon");
    assert_eq!(node.phase(&id), Phase::Creating);
    drop(held);
    assert!(node.containers.reconcile().await.unwrap());
    assert!(node.rows.get(&id).is_none());
}

#[tokio::test]
async fn a_round_is_complete_when_what_is_held_needs_no_look() {
    let (node, id) = with_running(Phase::Running).await;
    let _held = node.locks.lock(node.row(&id).sandbox.as_str()).await;
    assert!(node.containers.reconcile().await.unwrap());
}

#[tokio::test]
async fn a_stop_in_progress_keeps_no_round_waiting() {
    let (node, id) = with_running(Phase::Running).await;
    let containers = Arc::clone(&node.containers);
    let stopped = id.clone();
    let stop = async move { containers.stop(&stopped, Duration::from_secs(3600)).await };
    let stop = tokio::spawn(stop);
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    let round = tokio::time::timeout(TIMEOUT, node.containers.reconcile()).await;
    round.expect("the round ends").unwrap();
    assert_eq!(node.phase(&id), Phase::Stopping);
    stop.abort();
}

#[tokio::test]
async fn a_round_without_libvirt_changes_nothing() {
    let (node, id) = with_running(Phase::Running).await;
    node.hypervisor.disconnect();
    node.containers.reconcile().await.unwrap_err();
    assert_eq!(node.phase(&id), Phase::Running);
    node.hypervisor.reconnect();
    let state = node.hypervisor.state(id.domain()).await.unwrap();
    assert_eq!(state, Some(State::Active));
}
