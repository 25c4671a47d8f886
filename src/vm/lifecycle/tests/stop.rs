//! Stops: the guest is asked, waited for and killed in time.
//!
//! Invariant: a stop ends when the guest does, and at the earliest deadline otherwise, with or
//! without a caller.
//! Failure: the exit, or a wait that took too long.
//!
//! Grace is an hour, which passes when a test advances the clock: no test depends on how fast the
//! machine is.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{DiskFailure, FailedDisk, FakeHypervisor, Hypervisor, Shutdown};
use podspec::ContainerId;
use service::boot_clock::Deadline;
use tokio::task::JoinHandle;

use crate::testkit::{Node, TIMEOUT};
use crate::vm::model::Container;
use crate::vm::state::Phase;
use crate::vm::{Error, Result};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

fn unresponsive() -> FakeHypervisor {
    FakeHypervisor::default().guest_ignores_shutdown()
}

fn stop(node: &Node, id: &ContainerId, grace: Duration) -> JoinHandle<Result<()>> {
    let containers = Arc::clone(&node.containers);
    let id = id.clone();
    tokio::spawn(async move { containers.stop(&id, grace).await })
}

async fn ends(stop: JoinHandle<Result<()>>) -> Result<()> {
    let ended = tokio::time::timeout(TIMEOUT, stop).await;
    ended.expect("in time").unwrap()
}

/// When the stop in progress kills the guest.
fn deadline(node: &Node, id: &ContainerId) -> Deadline {
    node.row(id).kill_at.expect("a stop")
}

/// Time passes until a minute before the kill that is due at `kill_at`, and then to the kill.
async fn grace_passes(node: &Node, id: &ContainerId, kill_at: Deadline) {
    tokio::time::pause();
    let left = kill_at.left();
    tokio::time::advance(left.checked_sub(MINUTE).expect("a long grace")).await;
    settle().await;
    assert_eq!(node.phase(id), Phase::Stopping, "it has time left");
    tokio::time::advance(MINUTE).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_guest_that_does_not_listen_is_killed_when_its_grace_ends_and_not_before() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let from = Deadline::after(HOUR);
    let stop = stop(&node, &id, HOUR);
    let requested = async {
        while node.hypervisor.shutdowns().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, requested)
        .await
        .expect("asked");
    let kill_at = deadline(&node, &id);
    assert!(from <= kill_at && kill_at <= Deadline::after(HOUR));
    grace_passes(&node, &id, kill_at).await;
    ends(stop).await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
    let requested = node.hypervisor.shutdowns();
    assert_eq!(requested[0], (id.domain(), Shutdown::Agent));
    assert_eq!(requested[1], (id.domain(), Shutdown::Acpi));
}

#[tokio::test]
async fn the_button_waits_for_no_agent_of_others_and_the_order_is_repeated_until_it_is_out() {
    let node = Node::with(unresponsive().agent_answering([])).await;
    let id = node.started().await;
    let row = node.row(&id);
    node.hypervisor.delay_orders(2, Duration::from_secs(8));
    tokio::time::pause();
    let requests = node.containers.request_power_off(&row);
    let requests = tokio::time::timeout(Duration::from_secs(20), requests);
    assert!(requests.await.is_err(), "they have no end");
    tokio::time::resume();
    let requested = node.hypervisor.shutdowns().into_iter().map(|(_, how)| how);
    let requested: Vec<_> = requested.collect();
    // After 5, 7 to 15 s; after two waits of the agent, 16 s; after 17 and 19 s.
    let expected = [
        &[Shutdown::Acpi; 6][..],
        &[Shutdown::Agent],
        &[Shutdown::Acpi; 2],
    ];
    assert_eq!(requested, expected.concat());
}

#[tokio::test]
async fn a_shorter_stop_cuts_a_longer_one_and_a_longer_one_changes_nothing() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let first = stop(&node, &id, HOUR);
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    let kill_at = deadline(&node, &id);
    let mut changes = node.rows.changes();
    let longer = stop(&node, &id, HOUR * 2);
    changes.changed().await.unwrap();
    assert_eq!(node.row(&id).kill_at, Some(kill_at));
    let shorter = stop(&node, &id, HOUR / 2);
    node.until(&id, |row| row.kill_at < Some(kill_at)).await;
    grace_passes(&node, &id, deadline(&node, &id)).await;
    for stop in [first, longer, shorter] {
        ends(stop).await.unwrap();
    }
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

#[tokio::test]
async fn a_stop_without_grace_sends_no_acpi_event() {
    let node = Node::new().await;
    let id = node.started().await;
    ends(stop(&node, &id, Duration::ZERO)).await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
    let row = node.row(&id);
    assert!(deadline(&node, &id).left().is_zero());
    assert!(row.exit.as_ref().unwrap().message.contains("grace period"));
    assert!(node.hypervisor.shutdowns().is_empty());
}

#[tokio::test]
async fn a_stop_ends_when_the_guest_does() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let stop = stop(&node, &id, HOUR);
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    node.hypervisor.power_off(id.domain());
    ends(stop).await.unwrap();
    assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
}

#[tokio::test]
async fn a_stop_goes_on_when_its_client_goes_away() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let client = stop(&node, &id, HOUR);
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    grace_passes(&node, &id, deadline(&node, &id)).await;
    node.until(&id, |row| row.phase == Phase::Exited).await;
}

#[tokio::test]
async fn a_kill_whose_event_is_lost_is_recorded_all_the_same() {
    let mut node = Node::with(unresponsive()).await;
    let id = node.started().await;
    node.lose_events();
    ends(stop(&node, &id, Duration::from_millis(10)))
        .await
        .unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

#[tokio::test]
async fn without_libvirt_a_stop_fails_at_once_and_changes_nothing() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.disconnect();
    let refused = ends(stop(&node, &id, HOUR)).await;
    let Err(Error::Hypervisor { source, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(source.is_unavailable());
    assert_eq!(node.phase(&id), Phase::Running);
    node.hypervisor.reconnect();
    ends(stop(&node, &id, HOUR)).await.unwrap();
}

#[tokio::test]
async fn a_kill_that_was_due_while_libvirt_was_away_comes_when_it_is_back() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let stop = stop(&node, &id, HOUR);
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    node.hypervisor.disconnect();
    node.force(&id, |row| {
        row.kill_at = Some(Deadline::after(Duration::ZERO))
    })
    .await;
    tokio::time::timeout(TIMEOUT, async {
        while node.containers.is_seen_through(&id) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the kill fails");
    assert_eq!(node.phase(&id), Phase::Stopping);
    node.hypervisor.reconnect();
    node.containers.reconcile().await.unwrap();
    ends(stop).await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

#[tokio::test]
async fn a_restart_finishes_a_stop() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let kill_at = Deadline::after(HOUR);
    node.force(&id, |row| {
        row.phase = Phase::Stopping;
        row.kill_at = Some(kill_at);
    })
    .await;
    let node = node.restarted().await;
    node.containers.reconcile().await.unwrap();
    settle().await;
    grace_passes(&node, &id, kill_at).await;
    node.until(&id, |row| row.phase == Phase::Exited).await;
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

#[tokio::test]
async fn an_end_that_is_recorded_while_a_stop_is_does_not_get_lost() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let held = node.hold_writes().await;
    let stop = stop(&node, &id, HOUR);
    settle().await;
    // Without a newline they reach the log only when the machine has ended.
    node.prints(&id, "last words");
    node.hypervisor.power_off(id.domain());
    node.logged(&id, "last words").await;
    settle().await;
    assert_eq!(node.phase(&id), Phase::Running, "neither is recorded yet");
    drop(held);
    ends(stop).await.unwrap();
    assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
}

#[tokio::test]
async fn a_removal_copes_with_a_start_that_slips_in() {
    let node = Node::new().await;
    let id = node.created().await;
    let held = node.hold_writes().await;
    let start = {
        let containers = Arc::clone(&node.containers);
        let id = id.clone();
        tokio::spawn(async move { containers.start(&id).await })
    };
    settle().await;
    let remove = {
        let containers = Arc::clone(&node.containers);
        let id = id.clone();
        tokio::spawn(async move { containers.remove(&id).await })
    };
    settle().await;
    assert_eq!(node.phase(&id), Phase::Created, "the start has the lock");
    drop(held);
    ends(start).await.unwrap();
    ends(remove).await.unwrap();
    assert_eq!((node.rows.get(&id), node.domain(&id).await), (None, None));
}

fn full(id: &ContainerId, node: &Node) {
    let disk = FailedDisk {
        name: "vda".to_owned(),
        cause: DiskFailure::NoSpace,
    };
    node.hypervisor.fail_disk(id.domain(), disk);
}

#[tokio::test]
async fn a_paused_guest_is_resumed_so_that_it_can_power_off() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.suspend(id.domain()).await.unwrap();
    ends(stop(&node, &id, HOUR)).await.unwrap();
    assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
}

#[tokio::test]
async fn a_guest_whose_disk_stays_full_is_killed_at_once_with_the_reason() {
    let node = Node::new().await;
    let id = node.started().await;
    full(&id, &node);
    ends(stop(&node, &id, HOUR)).await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
    let message = node.row(&id).exit.clone().unwrap().message;
    assert!(message.contains("disk vda: no space left"), "{message}");
    assert_eq!(node.hypervisor.resumes(id.domain()), 1);
    assert!(node.hypervisor.shutdowns().is_empty());
}

#[tokio::test]
async fn a_guest_whose_disk_has_space_again_powers_off() {
    let node = Node::new().await;
    let id = node.started().await;
    full(&id, &node);
    node.hypervisor.mend_disk(id.domain());
    tokio::time::pause();
    ends(stop(&node, &id, HOUR)).await.unwrap();
    tokio::time::resume();
    assert_eq!(node.exit(&id), (0, "Completed".to_owned()));
}

/// The database refuses every write, as on a file system that is full or read-only.
#[tokio::test]
async fn stops_and_removals_need_no_write() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let sandbox = node.row(&id).sandbox.clone();
    node.refuse_writes(true).await;
    ends(stop(&node, &id, Duration::ZERO)).await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
    node.sandboxes.stop(&sandbox).await.unwrap();
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(
        !node.containers.paths().pod(&sandbox).exists(),
        "its disk is gone"
    );
    assert!(node.rows.all().is_empty() && node.sandbox_rows.all().is_empty());
    // What could not be recorded is recorded, or found to have no owner.
    assert_eq!(node.images.owners().len(), 1, "the image is pinned");
    node.refuse_writes(false).await;
    node.containers.store_late().await.unwrap();
    node.sandboxes.store_late().await.unwrap();
    node.containers.reconcile().await.unwrap();
    assert!(node.counted().await.is_empty() && node.images.owners().is_empty());
    let node = node.restarted().await;
    assert!(node.rows.all().is_empty() && node.sandbox_rows.all().is_empty());
}

/// The daemon dies before it could record anything of the removal.
#[tokio::test]
async fn a_removal_that_was_not_recorded_is_repeated_after_a_crash() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let sandbox = node.row(&id).sandbox.clone();
    node.refuse_writes(true).await;
    node.sandboxes.stop(&sandbox).await.unwrap();
    node.sandboxes.remove(&sandbox).await.unwrap();
    let node = node.restarted().await;
    node.refuse_writes(false).await;
    assert_eq!(node.phase(&id), Phase::Running, "nothing was stored");
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(node.rows.all().is_empty() && node.sandbox_rows.all().is_empty());
    assert!(node.counted().await.is_empty() && node.images.owners().is_empty());
    assert_eq!(node.files(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn an_end_that_was_not_recorded_is_found_again_after_a_crash() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    node.refuse_writes(true).await;
    ends(stop(&node, &id, Duration::ZERO)).await.unwrap();
    let node = node.restarted().await;
    node.refuse_writes(false).await;
    assert_eq!(node.phase(&id), Phase::Running, "nothing was stored");
    node.containers.reconcile().await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

/// Lets every other task continue until it waits for something else.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_kill_that_is_not_confirmed_is_reported_while_other_containers_change() {
    let node = Node::with(FakeHypervisor::default().guest_ignores_shutdown()).await;
    let id = node.started().await;
    let other = node.annotated("other", &[]).await;
    let other = node.containers.create(&other, node.machine(0)).await;
    let other = other.unwrap();
    // Time passes only as this test says, as long as a thread is busy.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let busy = tokio::task::spawn_blocking(move || held.recv().unwrap_err());
    tokio::time::pause();
    let containers = node.containers.clone();
    let of = id.clone();
    let grace = Duration::from_secs(60);
    let stopping = tokio::spawn(async move { containers.stop(&of, grace).await });
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    node.hypervisor.disconnect();
    // The grace, the time for a confirmation, and a few seconds.
    for _ in 0..90 {
        node.force(&other, |row| row.oom_kills += 1).await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    tokio::task::yield_now().await;
    assert!(
        stopping.is_finished(),
        "other containers put the deadline off"
    );
    let refused = stopping.await.unwrap();
    assert!(
        matches!(refused, Err(Error::StillRunning(_))),
        "{refused:?}"
    );
    drop(release);
    busy.await.unwrap();
}

#[tokio::test]
async fn a_kill_waits_for_no_look_that_the_stop_before_it_began() {
    let node = Node::with(unresponsive()).await;
    let id = node.started().await;
    let held = node.hypervisor.hold_looks().await;
    let graceful = stop(&node, &id, HOUR);
    node.until(&id, |row| row.phase == Phase::Stopping).await;
    // The request to the guest waits for its look at it.
    settle().await;
    let now = stop(&node, &id, Duration::ZERO);
    let is_due = |row: &Container| row.kill_at.is_some_and(|at| at.left().is_zero());
    node.until(&id, is_due).await;
    // The kill waits for its look.
    settle().await;
    drop(held);
    ends(now).await.unwrap();
    ends(graceful).await.unwrap();
    assert_eq!(node.exit(&id), (137, "Error".to_owned()));
}

#[tokio::test]
async fn a_start_that_waits_for_its_turn_ends_with_a_stop_of_its_pod_or_container() {
    let node = Node::new().await;
    let id = node.created().await;
    let sandbox = node.row(&id).sandbox.clone();
    for is_of_pod in [true, false] {
        let hold = node.hypervisor.hold_starts().await;
        let containers = node.containers.clone();
        let starting = id.clone();
        let start = tokio::spawn(async move { containers.start(&starting).await });
        node.until(&id, |row| row.phase == Phase::Starting).await;
        let stop = is_of_pod.then(|| node.containers.request_stop(&sandbox));
        if !is_of_pod {
            let stopped = node.containers.stop(&id, Duration::from_secs(600));
            tokio::time::timeout(TIMEOUT, stopped)
                .await
                .unwrap()
                .unwrap();
        }
        let ended = tokio::time::timeout(TIMEOUT, start).await;
        let ended = ended.expect("the stop waits for the turn").unwrap();
        assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
        assert_eq!(node.phase(&id), Phase::Created);
        drop((stop, hold));
    }
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
}
