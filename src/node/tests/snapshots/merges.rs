//! Snapshots that are deleted while their machine runs.
//!
//! Invariant: as of all tests of snapshots; the emulator keeps a list of its files and copies nothing.
//! Failure: a test prints the task that did not end as it should.

use libvirt::{BlockCommit, Hypervisor as _, Pause, Power};

use super::*;
use crate::disk::{Change, Step};

mod killed;
mod late;

fn delete(n: u32) -> Work {
    Work::DeleteSnapshot {
        snapshot: snapshot(n),
    }
}

/// A machine that runs, with so many snapshots, the last of which is the newest.
async fn with_snapshots(n: u32) -> (Node, Uuid) {
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    for n in 1..=n {
        let taken = run(&agenda, n, take(n, 0)).await;
        assert_eq!(taken.state, State::Success, "{taken:?}");
    }
    (node, domain)
}

async fn power(node: &Node, domain: Uuid) -> Power {
    node.hypervisor.power(domain).await.unwrap().unwrap()
}

/// The emulator has the files of the record, and no other.
async fn ensure_agreed(node: &Node, domain: Uuid) {
    let files = node.disks.files(uid(9));
    let open = node.hypervisor.disk_files(domain).await.unwrap().unwrap();
    let open: Vec<_> = open.into_iter().map(|file| file.path).collect();
    let recorded: Vec<_> = [files.active].into_iter().chain(files.below).collect();
    // The image is below the first.
    assert!(open.starts_with(&recorded), "{open:?}, {recorded:?}");
    assert!(open.len() <= recorded.len() + 1, "{open:?}, {recorded:?}");
    assert_eq!(node.disks.change(uid(9)), None);
    assert!(!node.hypervisor.has_job(domain));
    let kept = std::fs::read_dir(node.disks.layers_directory(uid(9)));
    assert_eq!(kept.unwrap().count(), recorded.len() - 1);
}

#[tokio::test]
async fn the_newest_snapshot_is_merged_into_the_file_that_the_guest_then_writes_to() {
    let (node, domain) = with_snapshots(1).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let deleted = run(&agenda, 11, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    ensure_agreed(&node, domain).await;
    assert_eq!(power(&node, domain).await, Power::On);
    assert_eq!(node.hypervisor.resumes(domain), 1);
    assert_eq!(run(&agenda, 12, take(2, 0)).await.state, State::Success);
}

#[tokio::test]
async fn a_layer_that_is_only_read_is_merged_without_a_pause() {
    let (node, domain) = with_snapshots(3).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let active = node.disks.file(uid(9));
    for n in [2, 1] {
        let deleted = run(&agenda, 10 + n, delete(n)).await;
        assert_eq!(deleted.state, State::Success, "{deleted:?}");
        ensure_agreed(&node, domain).await;
    }
    assert_eq!(node.disks.file(uid(9)), active);
    assert_eq!(node.disks.files(uid(9)).below.len(), 1);
    assert_eq!(node.hypervisor.resumes(domain), 0);
    let kept = node.disks.snapshot(uid(9), snapshot(3)).await.unwrap();
    assert!(kept.is_some_and(|kept| kept.parent.is_none()));
}

/// The emulator has neither of the two open.
#[tokio::test]
async fn layers_of_another_branch_are_merged_beside_the_emulator() {
    let (node, id, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    for n in 1..=3 {
        let taken = run(&agenda, n, take(n, 0)).await;
        assert_eq!(taken.state, State::Success, "{taken:?}");
    }
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    let revert = Work::Revert {
        snapshot: snapshot(1),
        memory: false,
    };
    let reverted = run(&agenda, 4, revert).await;
    assert_eq!(reverted.state, State::Success, "{reverted:?}");
    let vm = uid(9).to_string();
    let sandbox = node.annotated("next", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    let before = node.hypervisor.disk_files(domain).await.unwrap();

    let deleted = run(&agenda, 5, delete(2)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(!node.hypervisor.has_job(domain));
    assert_eq!(node.hypervisor.disk_files(domain).await.unwrap(), before);
    let kept = node.disks.snapshot(uid(9), snapshot(3)).await.unwrap();
    assert!(kept.is_some_and(|kept| kept.parent == Some(snapshot(1))));
    let layers = std::fs::read_dir(node.disks.layers_directory(uid(9)));
    assert_eq!(layers.unwrap().count(), 2);
}

/// Its owner has paused it, and it stays so.
#[tokio::test]
async fn a_guest_that_is_paused_stays_paused() {
    let (node, domain) = with_snapshots(1).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    run(&agenda, 11, Work::Pause).await;
    let deleted = run(&agenda, 12, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert_eq!(power(&node, domain).await, Power::Paused(Pause::Asked));
    assert_eq!(node.hypervisor.resumes(domain), 0);
    ensure_agreed(&node, domain).await;
}

/// Only the emulator knows whether a pivot that failed took place.
#[rstest::rstest]
#[case::not_pivoted(false)]
#[case::pivoted(true)]
#[tokio::test]
async fn a_pivot_that_fails_leaves_a_guest_that_runs(#[case] takes_place: bool) {
    let (node, domain) = with_snapshots(1).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.hypervisor.fail_pivots("no memory", takes_place);
    let done = run(&agenda, 11, delete(1)).await;
    assert_eq!(done.state == State::Success, takes_place, "{done:?}");
    assert_eq!(power(&node, domain).await, Power::On);
    assert_eq!(node.disks.files(uid(9)).below.is_empty(), takes_place);
    ensure_agreed(&node, domain).await;
    if !takes_place {
        let failure = done.failure.clone().unwrap();
        assert!(failure.transient && failure.message.contains("no memory"));
        let gone = node.disks.snapshot(uid(9), snapshot(1)).await.unwrap();
        assert_eq!(gone, None, "its layer may have been written to");
    }
}

/// What needs the disk does not wait for hours, and one that is cancelled leaves no job.
#[rstest::rstest]
#[case::saved(Some(Work::Save))]
#[case::taken(Some(take(2, 0)))]
#[case::cancelled(None)]
#[tokio::test]
async fn a_merge_ends_for_what_needs_the_disk(#[case] other: Option<Work>) {
    let (node, domain) = with_snapshots(1).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.hypervisor.hold_jobs(true);
    agenda.submit(uid(11), uid(9), delete(1)).await.unwrap();
    while !node.hypervisor.has_job(domain) {
        tokio::task::yield_now().await;
    }
    let is_cancelled = other.is_none();
    match other {
        Some(other) => {
            let done = run(&agenda, 12, other).await;
            assert_eq!(done.state, State::Success, "{done:?}");
        }
        None => {
            agenda.cancel(uid(11)).await.unwrap();
        }
    }
    let ended = ended(&agenda, uid(11)).await;
    let state = if is_cancelled {
        State::Cancelled
    } else {
        State::Error
    };
    assert_eq!(ended.state, state, "{ended:?}");
    let failure = ended.failure.clone();
    assert!(failure.is_none_or(|failure| failure.transient));
    assert!(!node.hypervisor.has_job(domain));
    assert_eq!(node.disks.change(uid(9)), None);
}

#[tokio::test]
async fn a_pause_does_not_wait_for_a_merge() {
    let (node, domain) = with_snapshots(1).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.hypervisor.hold_jobs(true);
    agenda.submit(uid(11), uid(9), delete(1)).await.unwrap();
    while !node.hypervisor.has_job(domain) {
        tokio::task::yield_now().await;
    }
    run(&agenda, 12, Work::Pause).await;
    assert_eq!(power(&node, domain).await, Power::Paused(Pause::Asked));
    run(&agenda, 13, Work::Unpause).await;
    node.hypervisor.hold_jobs(false);
    let deleted = ended(&agenda, uid(11)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert_eq!(power(&node, domain).await, Power::On);
}

/// Where a daemon was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Recorded,
    Copies,
    Paused,
    Pivoted,
    Committed,
}

/// A merge of the newest snapshot as a daemon that was killed leaves it.
async fn killed_at(point: Point) -> (Node, Uuid) {
    killed_with(point, true).await
}

/// The same; `runs`: the guest ran before.
async fn killed_with(point: Point, runs: bool) -> (Node, Uuid) {
    let (node, domain) = with_snapshots(1).await;
    let vm = uid(9);
    let holder = node.disks.get(vm).unwrap().holder.clone().unwrap();
    let deleted = node
        .disks
        .delete_snapshot_of_chain(vm, snapshot(1), &holder);
    deleted.await.unwrap();
    let merge = node.disks.merge_in_use(vm).unwrap();
    node.disks.begin_merge(vm, merge, &holder).await.unwrap();
    let driver = node.hypervisor.clone();
    if point >= Point::Copies {
        let commit = BlockCommit {
            top: node.disks.layer(vm, merge.child),
            base: node.disks.layer(vm, merge.layer),
            is_active: true,
            bytes_per_second: 0,
        };
        driver.commit_root(domain, commit).await.unwrap();
    }
    if point >= Point::Paused {
        while !driver.root_job(domain).await.unwrap().unwrap().is_ready() {}
        node.disks.begin_pivot(vm, merge.layer, runs).await.unwrap();
        driver.suspend(domain).await.unwrap();
    }
    if point >= Point::Pivoted {
        let pivot = libvirt::BlockJobEnd::Pivot;
        driver.end_root_job(domain, pivot).await.unwrap();
    }
    if point >= Point::Committed {
        node.disks.commit_merge(vm, merge.layer).await.unwrap();
        let resume = Change {
            layer: merge.layer,
            step: Step::Resume,
        };
        assert_eq!(node.disks.change(vm), Some(resume));
    }
    (node.restarted().await, domain)
}

async fn settled(node: &Node) {
    let mut changes = node.disks.changes();
    node.containers.reconcile().await.unwrap();
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
    };
    let soon = std::time::Duration::from_secs(10);
    tokio::time::timeout(soon, settled).await.unwrap();
}

/// libvirtd has begun it for a daemon that was killed, after the next one had looked.
#[tokio::test]
async fn a_job_that_no_record_is_about_is_not_taken_for_that_of_a_merge() {
    let (node, domain) = with_snapshots(2).await;
    let commit = BlockCommit {
        top: node.disks.layer(uid(9), 2),
        base: node.disks.layer(uid(9), 1),
        is_active: true,
        bytes_per_second: 0,
    };
    node.hypervisor.commit_root(domain, commit).await.unwrap();
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let deleted = run(&agenda, 11, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert_eq!(node.hypervisor.resumes(domain), 0);
    ensure_agreed(&node, domain).await;
}

/// The merge makes the room that it lacks.
#[tokio::test]
async fn a_snapshot_that_cannot_be_taken_ends_no_merge() {
    let node = Node::new().await;
    node.make_disk(uid(9)).await;
    for n in 1..=32 {
        node.disks.take_snapshot(uid(9), snapshot(n)).await.unwrap();
    }
    assert!(node.disks.is_full(uid(9)));
    let agenda = agenda(&node).await;
    agenda.submit(uid(1), uid(9), delete(1)).await.unwrap();
    agenda.submit(uid(2), uid(9), take(40, 0)).await.unwrap();
    assert_eq!(agenda.next().len(), 2);
    assert!(!agenda.makes_way(uid(1)).is_cancelled());
    agenda.submit(uid(3), uid(9), Work::Save).await.unwrap();
    // It waits for the snapshot, which fails at once, and ends the merge then.
    assert!(agenda.next().is_empty());
}

#[tokio::test]
async fn the_deletion_of_a_snapshot_makes_way_for_a_snapshot_and_for_no_pause() {
    let node = Node::new().await;
    node.make_disk(uid(9)).await;
    let agenda = agenda(&node).await;
    agenda.submit(uid(1), uid(9), delete(1)).await.unwrap();
    agenda.submit(uid(2), uid(9), Work::Pause).await.unwrap();
    assert_eq!(agenda.next().len(), 2);
    assert!(!agenda.makes_way(uid(1)).is_cancelled());
    let node = Node::new().await;
    node.make_disk(uid(9)).await;
    let agenda = super::agenda(&node).await;
    agenda.submit(uid(1), uid(9), delete(1)).await.unwrap();
    agenda.submit(uid(2), uid(9), take(1, 0)).await.unwrap();
    assert_eq!(agenda.next().len(), 1);
    assert!(agenda.makes_way(uid(1)).is_cancelled());
}
