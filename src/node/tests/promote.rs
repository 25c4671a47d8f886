//! Promotions: beside other tasks of their machine, and across the ends of this process.
//!
//! Invariant: real disks and `qemu-img`.
//! Failure: a test prints the task that did not end as it should.

use std::process::Command;

use libvirt::Hypervisor as _;
use podspec::ContainerId;

use super::*;
use crate::space::Space;

mod pulls;

const OFFLINE: Work = Work::Promote { online: false };
const ONLINE: Work = Work::Promote { online: true };

/// A machine that runs on a linked disk.
async fn running() -> (Node, ContainerId) {
    let node = Node::new().await;
    make_linked(&node).await;
    let vm = uid(9).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    (node, id)
}

async fn make_linked(node: &Node) {
    let desired = crate::disk::DesiredDisk {
        vm: uid(9),
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 0,
        linked: true,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
}

/// A copy without the image has taken the disk's place.
fn make_whole(node: &Node) {
    let file = node.disks.file(uid(9));
    let mut rebase = Command::new("qemu-img");
    let rebased = rebase.args(["rebase", "-f", "qcow2", "-b", ""]).arg(file);
    assert!(rebased.status().unwrap().success());
}

/// The task as a daemon that was killed leaves it.
async fn interrupted(agenda: &Tasks, task: TaskUid, is_cancelled: bool) {
    let run = |task: &mut Task| {
        task.state = State::Running;
        task.started_at = 1;
        task.cancelled = is_cancelled;
        true
    };
    agenda.records.change(&task, run).await.unwrap();
}

#[tokio::test]
async fn a_disk_is_promoted_and_lets_its_image_go() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    make_linked(&node).await;
    // The second has nothing to do.
    for task in [1, 2] {
        agenda.submit(uid(task), uid(9), OFFLINE).await.unwrap();
        let done = ended(&agenda, uid(task)).await;
        assert_eq!((done.state, done.percent), (State::Success, 100));
        assert!(!node.disks.get(uid(9)).unwrap().linked);
        assert!(node.disks.base(uid(9)).is_none());
    }
    agenda.submit(uid(3), uid(8), OFFLINE).await.unwrap();
    let failed = ended(&agenda, uid(3)).await.failure.clone().unwrap();
    assert!(!failed.transient && failed.message.contains("no disk"));
}

#[tokio::test]
async fn the_disk_of_a_machine_that_runs_is_promoted_once_it_is_off() {
    let (node, id) = running().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), OFFLINE).await.unwrap();
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(failed.transient && failed.message.contains("in use"));
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    agenda.submit(uid(2), uid(9), OFFLINE).await.unwrap();
    let done = ended(&agenda, uid(2)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
}

/// The daemon was killed between the rename of the copy and the record of it.
#[tokio::test]
async fn a_start_first_records_a_disk_that_is_whole() {
    let node = Node::new().await;
    make_linked(&node).await;
    make_whole(&node);
    let vm = uid(9).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    assert!(!node.disks.get(uid(9)).unwrap().linked);
    assert!(node.disks.base(uid(9)).is_none());
}

#[tokio::test]
async fn a_promotion_makes_way_for_a_task_that_needs_the_disk_and_delays_no_other() {
    let node = Node::new().await;
    make_linked(&node).await;
    let agenda = agenda(&node).await;
    agenda.submit(uid(1), uid(9), OFFLINE).await.unwrap();
    agenda.submit(uid(2), uid(9), Work::Pause).await.unwrap();
    let chosen = agenda.next();
    let uids: Vec<_> = chosen.iter().map(|task| task.uid).collect();
    assert_eq!(uids, [uid(1), uid(2)]);
    assert!(!agenda.makes_way(uid(1)).is_cancelled());
    agenda.active().remove(&uid(2));
    agenda.records.remove_if(&uid(2), |_| true).await.unwrap();
    agenda
        .submit(uid(3), uid(9), Work::DeleteDisk)
        .await
        .unwrap();
    assert!(agenda.next().is_empty(), "it waits for the end of the copy");
    assert!(agenda.makes_way(uid(1)).is_cancelled());
    agenda.carry_out(&chosen[0], CancellationToken::new()).await;
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(failed.transient && failed.message.contains("another task"));
    assert!(node.disks.get(uid(9)).unwrap().linked);
    agenda.active().remove(&uid(1));
    assert_eq!(agenda.next()[0].uid, uid(3));
}

#[tokio::test]
async fn a_promotion_of_an_earlier_process_begins_again() {
    let node = Node::new().await;
    make_linked(&node).await;
    let before = agenda(&node).await;
    before.submit(uid(1), uid(9), OFFLINE).await.unwrap();
    interrupted(&before, uid(1), false).await;
    let after = agenda(&node).await;
    let _work = work(&after);
    assert_eq!(ended(&after, uid(1)).await.state, State::Success);
    assert!(!node.disks.get(uid(9)).unwrap().linked);
}

#[tokio::test]
async fn a_promotion_that_was_cancelled_ends_after_a_restart_and_leaves_the_overlay() {
    let node = Node::new().await;
    make_linked(&node).await;
    let copy = node.disks.file(uid(9)).with_file_name("root.flat");
    std::fs::write(&copy, "half of it").unwrap();
    let before = agenda(&node).await;
    // The disk of the second is gone.
    for (task, vm) in [(1, 9), (2, 8)] {
        let submitted = before.submit(uid(task), uid(vm), OFFLINE);
        submitted.await.unwrap();
        interrupted(&before, uid(task), true).await;
    }
    let after = agenda(&node).await;
    let _work = work(&after);
    for task in [1, 2] {
        let done = ended(&after, uid(task)).await;
        assert_eq!(done.state, State::Cancelled, "{done:?}");
    }
    assert!(!copy.exists());
    assert!(node.disks.get(uid(9)).unwrap().linked);
    assert!(node.disks.base(uid(9)).is_some());
}

#[tokio::test]
async fn a_copy_that_was_complete_before_its_cancel_is_success() {
    let node = Node::new().await;
    make_linked(&node).await;
    make_whole(&node);
    let before = agenda(&node).await;
    before.submit(uid(1), uid(9), OFFLINE).await.unwrap();
    interrupted(&before, uid(1), true).await;
    let after = agenda(&node).await;
    let _work = work(&after);
    assert_eq!(ended(&after, uid(1)).await.state, State::Success);
    assert!(node.disks.base(uid(9)).is_none());
}

#[tokio::test]
async fn one_disk_is_promoted_at_a_time_and_one_that_waits_delays_no_task() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    agenda.submit(uid(1), uid(9), OFFLINE).await.unwrap();
    agenda.submit(uid(2), uid(8), OFFLINE).await.unwrap();
    agenda
        .submit(uid(3), uid(8), Work::DeleteDisk)
        .await
        .unwrap();
    let chosen: Vec<_> = agenda.next().iter().map(|task| task.uid).collect();
    assert_eq!(chosen, [uid(1), uid(3)]);
}
