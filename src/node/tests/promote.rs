//! Promotions: beside other tasks of their machine, and across the ends of this process.
//!
//! Invariant: real disks; the fake's pull ends when the test says so.
//! Failure: a test prints the task that did not end as it should.

use std::process::Command;

use libvirt::Hypervisor as _;
use podspec::ContainerId;

use super::*;

const ONLINE: Work = Work::Promote { offline: false };
const OFFLINE: Work = Work::Promote { offline: true };

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

/// Waits for the pull of the machine's disk.
async fn pulls(node: &Node) {
    let begun = async {
        while node.hypervisor.pull(uid(9).uuid(), "vda").is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, begun).await.expect("a pull");
}

/// The emulator has written the disk that the pull leaves.
fn make_whole(node: &Node) {
    let file = node.disks.file(uid(9));
    let mut rebase = Command::new("qemu-img");
    let rebased = rebase.args(["rebase", "-f", "qcow2", "-b", ""]).arg(file);
    assert!(rebased.status().unwrap().success());
}

#[tokio::test]
async fn a_pull_that_ends_with_a_whole_disk_is_success_and_lets_the_image_go() {
    let (node, _) = running().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    pulls(&node).await;
    assert_eq!(node.hypervisor.pull(uid(9).uuid(), "vda"), Some(7));
    make_whole(&node);
    node.hypervisor.finish_pull(uid(9).uuid());
    let done = ended(&agenda, uid(1)).await;
    assert_eq!((done.state, done.percent), (State::Success, 100));
    assert!(!node.disks.get(uid(9)).unwrap().linked);
    assert!(node.disks.base(uid(9)).is_none());
    // Nothing is left to do, whether the machine runs or not.
    for (task, work) in [(2, ONLINE), (3, OFFLINE)] {
        agenda.submit(uid(task), uid(9), work).await.unwrap();
        assert_eq!(ended(&agenda, uid(task)).await.state, State::Success);
    }
}

#[tokio::test]
async fn a_pull_that_ends_early_is_a_failure_that_may_pass() {
    let (node, _) = running().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    pulls(&node).await;
    node.hypervisor.finish_pull(uid(9).uuid());
    let failed = ended(&agenda, uid(1)).await;
    let failure = failed.failure.clone().unwrap();
    assert!(failure.transient, "{failure:?}");
    assert!(failure.message.contains("stays an overlay"), "{failure:?}");
    assert!(node.disks.get(uid(9)).unwrap().linked);
}

#[tokio::test]
async fn other_tasks_do_not_wait_for_a_promotion_and_a_save_ends_it() {
    let (node, _) = running().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    pulls(&node).await;
    for (task, work) in [(2, Work::Pause), (3, Work::Unpause), (4, Work::Reset)] {
        agenda.submit(uid(task), uid(9), work).await.unwrap();
        assert_eq!(ended(&agenda, uid(task)).await.state, State::Success);
        assert!(node.hypervisor.pull(uid(9).uuid(), "vda").is_some());
    }
    agenda.submit(uid(5), uid(9), Work::Save).await.unwrap();
    let promoted = ended(&agenda, uid(1)).await;
    let failure = promoted.failure.clone().unwrap();
    assert!(failure.transient && failure.message.contains("another task"));
    assert!(node.hypervisor.pull(uid(9).uuid(), "vda").is_none());
    let saved = ended(&agenda, uid(5)).await;
    assert_eq!(saved.state, State::Success, "{saved:?}");
    assert!(saved.started_at >= promoted.completed_at);
}

#[tokio::test]
async fn a_cancelled_promotion_ends_its_pull_and_keeps_the_overlay() {
    let (node, _) = running().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    pulls(&node).await;
    agenda.cancel(uid(1)).await.unwrap();
    assert_eq!(ended(&agenda, uid(1)).await.state, State::Cancelled);
    assert!(node.hypervisor.pull(uid(9).uuid(), "vda").is_none());
    assert!(node.disks.get(uid(9)).unwrap().linked);
    assert!(node.disks.base(uid(9)).is_some());
}

#[tokio::test]
async fn a_pull_of_an_earlier_process_is_found_again_and_its_end_as_well() {
    let (node, _) = running().await;
    let before = agenda(&node).await;
    before.submit(uid(1), uid(9), ONLINE).await.unwrap();
    let run = |task: &mut Task| {
        task.state = State::Running;
        task.started_at = 1;
        true
    };
    before.records.change(&uid(1), run).await.unwrap();
    let pulled = node
        .hypervisor
        .pull_disk(uid(9).uuid(), "vda".to_owned(), 3);
    pulled.await.unwrap();
    let after = agenda(&node).await;
    let _work = work(&after);
    node.hypervisor.advance_pull(uid(9).uuid(), 40);
    let mut changes = after.changes();
    let progress = async {
        while after.all()[0].percent != 40 {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, progress)
        .await
        .expect("progress");
    assert_eq!(node.hypervisor.pull(uid(9).uuid(), "vda"), Some(3));
    make_whole(&node);
    node.hypervisor.finish_pull(uid(9).uuid());
    assert_eq!(ended(&after, uid(1)).await.state, State::Success);
}

#[tokio::test]
async fn a_promotion_is_for_a_machine_in_the_state_that_it_names() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    make_linked(&node).await;
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(failed.transient, "{failed:?}");
    agenda.submit(uid(2), uid(9), OFFLINE).await.unwrap();
    assert_eq!(ended(&agenda, uid(2)).await.state, State::Success);
    assert!(!node.disks.get(uid(9)).unwrap().linked);
    agenda.submit(uid(3), uid(8), OFFLINE).await.unwrap();
    let failed = ended(&agenda, uid(3)).await.failure.clone().unwrap();
    assert!(!failed.transient && failed.message.contains("no disk"));
}

#[tokio::test]
async fn a_running_machine_is_not_promoted_offline_and_its_end_ends_its_promotion() {
    let (node, id) = running().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), OFFLINE).await.unwrap();
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(failed.transient && failed.message.contains("in use"));
    agenda.submit(uid(2), uid(9), ONLINE).await.unwrap();
    pulls(&node).await;
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    let failed = ended(&agenda, uid(2)).await.failure.clone().unwrap();
    assert!(failed.transient, "{failed:?}");
    agenda.submit(uid(3), uid(9), OFFLINE).await.unwrap();
    let done = ended(&agenda, uid(3)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
}

#[tokio::test]
async fn one_disk_is_promoted_at_a_time_and_one_that_waits_delays_no_task() {
    let (node, _) = running().await;
    let agenda = agenda(&node).await;
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    agenda.submit(uid(2), uid(8), OFFLINE).await.unwrap();
    agenda
        .submit(uid(3), uid(8), Work::DeleteDisk)
        .await
        .unwrap();
    let chosen: Vec<_> = agenda.next().iter().map(|task| task.uid).collect();
    assert_eq!(chosen, [uid(1), uid(3)]);
}
