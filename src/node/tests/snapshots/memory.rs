//! Snapshots with the memory of the guest, and machines that resume from it.
//!
//! Invariant: real disks and `qemu-img`; the emulator writes a file that counts as whole, and goes over to the new layer.
//! Failure: a test prints the task that did not end as it should, or the files that are left.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use libvirt::{Hypervisor as _, MemorySwitch, Pause, Power};

use super::*;
use crate::disk::{Change, SnapshotMemory};

fn with_memory(n: u32) -> Work {
    Work::Snapshot {
        snapshot: snapshot(n),
        quiesce: 0,
        memory: true,
    }
}

fn revert(n: u32) -> Work {
    Work::Revert {
        snapshot: snapshot(n),
        memory: true,
    }
}

fn delete(n: u32) -> Work {
    Work::DeleteSnapshot {
        snapshot: snapshot(n),
    }
}

fn file(node: &Node, n: u32) -> PathBuf {
    node.disks.snapshot_memory(uid(9), snapshot(n))
}

/// What a machine resumes from.
fn resumed(node: &Node) -> PathBuf {
    node.disks.memory_file(uid(9))
}

async fn stop(node: &Node, id: &ContainerId) {
    let stopped = node.containers.stop(id, Duration::ZERO);
    stopped.await.unwrap();
}

/// The machine in another pod.
async fn start(node: &Node, pod: &str, restore: bool) -> crate::vm::Result<ContainerId> {
    let vm = uid(9).to_string();
    let annotations = [("vm-disk", vm.as_str()), ("restore", "true")];
    let most = if restore { 2 } else { 1 };
    let sandbox = node.annotated(pod, &annotations[..most]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await?;
    node.containers.start(&id).await?;
    Ok(id)
}

/// What a process leaves that is killed before its request, with a layer.
async fn begun(node: &Node, n: u32) -> Change {
    let memory = SnapshotMemory::about_to_be_written(1 << 20);
    let change = node
        .disks
        .begin_snapshot_with_memory(uid(9), snapshot(n), memory);
    let change = change.await.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    change
}

fn switch(node: &Node, change: Change, n: u32) -> MemorySwitch {
    MemorySwitch {
        disk: node.disks.new_layer(uid(9), change),
        memory: file(node, n),
        runs: true,
    }
}

#[tokio::test]
async fn a_machine_resumes_from_a_snapshot_as_often_as_it_reverts() {
    let (node, id, domain) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let taken = run(&agenda, 1, with_memory(1)).await.snapshot.unwrap();
    assert!(taken.running && taken.memory_bytes > 0, "{taken:?}");
    assert!(taken.used_bytes >= taken.memory_bytes);
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(
        node.hypervisor.power(domain).await.unwrap(),
        Some(Power::On)
    );
    assert_eq!(
        run(&agenda, 2, with_memory(1)).await.snapshot,
        Some(taken),
        "it is taken once"
    );
    stop(&node, &id).await;
    assert!(file(&node, 1).exists(), "it stays with the snapshot");
    for (task, pod) in [(3, "first"), (6, "second")] {
        let reverted = run(&agenda, task, revert(1)).await;
        assert_eq!(reverted.state, State::Success, "{reverted:?}");
        assert!(node.disks.get(uid(9)).unwrap().has_memory());
        let again = run(&agenda, task + 1, revert(1)).await;
        assert_eq!(again.state, State::Success, "{again:?}");
        let boots = start(&node, &format!("{pod}-boots"), false).await;
        assert!(boots.is_err(), "the memory would be lost");
        let id = start(&node, pod, true).await.unwrap();
        assert!(!resumed(&node).exists() && file(&node, 1).exists());
        assert!(node.disks.get(uid(9)).unwrap().memory.is_none());
        stop(&node, &id).await;
    }
    let booted = start(&node, "boots", false).await.unwrap();
    stop(&node, &booted).await;
    let deleted = run(&agenda, 9, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    let directory = file(&node, 1);
    assert!(!directory.parent().unwrap().exists(), "nothing is left");
}

#[tokio::test]
async fn a_disk_that_was_reverted_boots_without_the_memory() {
    let (node, id, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    run(&agenda, 1, with_memory(1)).await;
    stop(&node, &id).await;
    run(&agenda, 2, revert(1)).await;
    let discarded = run(&agenda, 3, Work::Restore { discard: true }).await;
    assert_eq!(discarded.state, State::Success, "{discarded:?}");
    let id = start(&node, "boots", false).await.unwrap();
    stop(&node, &id).await;
    assert!(!resumed(&node).exists() && file(&node, 1).exists());
    run(&agenda, 4, take(2, 0)).await;
    let refused = failure(&agenda, 5, revert(2)).await;
    assert!(!refused.transient && refused.message.contains("without memory"));
}

#[tokio::test]
async fn a_machine_that_is_off_has_no_snapshot_with_memory() {
    let node = Node::new().await;
    node.make_disk(uid(9)).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let refused = failure(&agenda, 1, with_memory(1)).await;
    assert!(
        !refused.transient && refused.message.contains("is off"),
        "{refused:?}"
    );
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
}

#[tokio::test]
async fn a_snapshot_without_saved_memory_leaves_nothing() {
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.hypervisor.fail_switches("no space is left", false);
    let refused = failure(&agenda, 1, with_memory(1)).await;
    let words = ["without memory", "no space is left"];
    assert!(
        words.iter().all(|words| refused.message.contains(words)),
        "{refused:?}"
    );
    let disk = node.disks.get(uid(9)).unwrap();
    assert!(disk.layers.is_none() && !file(&node, 1).exists());
    assert_eq!(
        node.hypervisor.power(domain).await.unwrap(),
        Some(Power::On)
    );
    node.hypervisor.accept_switches();
    let taken = run(&agenda, 2, with_memory(1)).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
}

#[tokio::test]
async fn a_snapshot_whose_machine_another_request_has_is_taken_by_its_repetition() {
    let (node, _, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    for (number, work) in [(1, with_memory(1)), (2, take(2, 0))] {
        node.hypervisor.lock_machines();
        let failed = failure(&agenda, 2 * number, work.clone()).await;
        assert!(failed.transient, "{failed:?}");
        node.hypervisor.accept_switches();
        let taken = run(&agenda, 2 * number + 1, work).await;
        assert_eq!(taken.state, State::Success, "{taken:?}");
    }
}

#[tokio::test]
async fn a_guest_that_changes_its_memory_too_fast_stands_still() {
    let (node, _, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.hypervisor.keep_guests_busy(1 << 40);
    let taken = run(&agenda, 1, with_memory(1)).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
    assert_eq!(node.hypervisor.memory_switches(), [true, false]);
}

#[tokio::test]
async fn a_cancelled_snapshot_with_memory_leaves_none() {
    let (node, _, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.hypervisor.keep_guests_busy(1);
    agenda.submit(uid(1), uid(9), with_memory(1)).await.unwrap();
    while node.hypervisor.memory_switches().is_empty() || !file(&node, 1).exists() {
        tokio::task::yield_now().await;
    }
    agenda.cancel(uid(1)).await.unwrap();
    let ended = ended(&agenda, uid(1)).await;
    assert_eq!(ended.state, State::Cancelled, "{ended:?}");
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    assert!(!file(&node, 1).exists());
}

/// The daemon was killed while libvirt worked on its request, which went on, or failed.
#[rstest::rstest]
#[case::taken(true, false)]
#[case::paused(true, true)]
#[case::failed(false, false)]
#[tokio::test]
async fn a_snapshot_of_an_earlier_process_has_its_memory_or_is_none(
    #[case] is_switched: bool,
    #[case] is_paused: bool,
) {
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let change = begun(&node, 1).await;
    let layer = node.disks.new_layer(uid(9), change);
    if is_switched {
        let to = switch(&node, change, 1);
        let switched = node.hypervisor.switch_root_with_memory(domain, to);
        switched.await.unwrap();
    } else {
        // It had written all, and did not get to the switch: the guest has run since.
        std::fs::write(file(&node, 1), "LibvirtQemudSave").unwrap();
    }
    if is_paused {
        node.hypervisor.suspend(domain).await.unwrap();
    }
    let node = node.restarted().await;
    let mut changes = node.disks.changes();
    node.containers.reconcile().await.unwrap();
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
        // The file goes after the record.
        while file(&node, 1).exists() != is_switched {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, settled).await.unwrap();
    let taken = node.disks.snapshot(uid(9), snapshot(1)).await.unwrap();
    assert_eq!(taken.is_some_and(|t| t.memory_bytes > 0), is_switched);
    assert_eq!(taken.is_some(), is_switched);
    assert_eq!(root(&node, domain).await == layer, is_switched);
    let power = node.hypervisor.power(domain).await.unwrap();
    assert_eq!(power, Some(Power::On), "nothing but the owner pauses it");
}

/// libvirt goes on to write for a daemon that was killed, and the emulator answers meanwhile.
#[tokio::test]
async fn what_writes_memory_for_an_earlier_process_is_ended_and_begins_again() {
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let change = begun(&node, 1).await;
    node.hypervisor.keep_guests_busy(1);
    let to = switch(&node, change, 1);
    let driver = node.hypervisor.clone();
    let left = tokio::spawn(async move { driver.switch_root_with_memory(domain, to).await });
    while !file(&node, 1).exists() {
        tokio::task::yield_now().await;
    }
    left.abort();
    assert!(left.await.is_err());
    let node = node.restarted().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    // The next look at the file ends that attempt, too.
    node.hypervisor.keep_guests_busy(1 << 40);
    let taken = run(&agenda, 1, with_memory(1)).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
    assert_eq!(node.hypervisor.memory_switches(), [true, true, false]);
    assert!(taken.snapshot.unwrap().memory_bytes > 0);
}

/// Whether the guest ran on after its memory was written is not known.
#[tokio::test]
async fn memory_of_a_machine_that_has_ended_meanwhile_is_not_used() {
    let (node, id, domain) = running(FakeHypervisor::default()).await;
    let change = begun(&node, 1).await;
    std::fs::write(file(&node, 1), "LibvirtQemudSave").unwrap();
    node.hypervisor.power_off(domain);
    stop(&node, &id).await;
    let id = start(&node, "next", false).await.unwrap();
    let layer = node.disks.new_layer(uid(9), change);
    assert_eq!(
        node.disks.file(uid(9)),
        layer,
        "it may have been written to"
    );
    let taken = node.disks.snapshot(uid(9), snapshot(1)).await.unwrap();
    assert!(taken.is_none() && !file(&node, 1).exists());
    stop(&node, &id).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let deleted = run(&agenda, 1, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
}

/// The daemon was killed between the files of a revert and its record.
#[tokio::test]
async fn a_revert_that_was_cut_short_has_the_memory_after_its_repetition() {
    let (node, id, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let working = work(&agenda);
    run(&agenda, 1, with_memory(1)).await;
    stop(&node, &id).await;
    std::fs::hard_link(file(&node, 1), resumed(&node)).unwrap();
    node.disks.collect().await.unwrap();
    assert!(!resumed(&node).exists(), "no record names it");
    std::fs::hard_link(file(&node, 1), resumed(&node)).unwrap();
    let reverted = run(&agenda, 2, revert(1)).await;
    assert_eq!(reverted.state, State::Success, "{reverted:?}");
    drop(working);
    let node = node.restarted().await;
    node.disks.collect().await.unwrap();
    let id = start(&node, "resumes", true).await.unwrap();
    assert!(node.disks.get(uid(9)).unwrap().memory.is_none());
    stop(&node, &id).await;
}

/// A libvirtd that is killed while a machine resumes leaves the file to the user of that, which the next machine has not.
#[tokio::test]
async fn memory_of_a_snapshot_belongs_to_no_user_of_a_machine() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let owner = |node: &Node| std::fs::metadata(file(node, 1)).unwrap().uid();
    let (node, id, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    run(&agenda, 1, with_memory(1)).await;
    let foreign = || std::os::unix::fs::chown(file(&node, 1), Some(4_000_200), Some(4_000_200));
    foreign().unwrap();
    stop(&node, &id).await;
    run(&agenda, 2, revert(1)).await;
    assert_eq!(owner(&node), 0);
    foreign().unwrap();
    let id = start(&node, "resumes", true).await.unwrap();
    stop(&node, &id).await;
    let taken = run(&agenda, 3, take(2, 0)).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
    assert_eq!(owner(&node), 0, "the machine has ended");
}

/// Its own pause is kept in the snapshot, and over it.
#[tokio::test]
async fn a_paused_guest_stays_paused_and_comes_back_so() {
    let (node, id, domain) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.containers.pause(uid(9)).await.unwrap();
    run(&agenda, 1, with_memory(1)).await;
    let paused = Some(Power::Paused(Pause::Asked));
    assert_eq!(node.hypervisor.power(domain).await.unwrap(), paused);
    stop(&node, &id).await;
    run(&agenda, 2, revert(1)).await;
    start(&node, "paused", true).await.unwrap();
    assert_eq!(node.hypervisor.power(domain).await.unwrap(), paused);
}
