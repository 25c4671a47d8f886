//! Clones as tasks: of machines that run and of those that are off, and across the ends of this process.
//!
//! Invariant: real disks and `qemu-img`; the emulator only keeps state.
//! Failure: a test prints the task that did not end as it should.

use super::*;
use crate::disk::Phase;

const SOURCE: u32 = 9;
const CLONE: u32 = 10;

fn cloned(snapshot: Option<u32>) -> Work {
    Work::CloneDisk {
        source: uid(SOURCE),
        snapshot: snapshot.map(uid),
        size: 0,
        name: "default/clone".to_owned(),
    }
}

async fn run(agenda: &Arc<Tasks>, task: u32, vm: u32, work: Work) -> Arc<Task> {
    agenda.submit(uid(task), uid(vm), work).await.unwrap();
    ended(agenda, uid(task)).await
}

/// A disk with a snapshot.
async fn with_snapshot(node: &Node, agenda: &Arc<Tasks>) {
    node.make_disk(uid(SOURCE)).await;
    let take = Work::Snapshot {
        snapshot: uid(101),
        quiesce: 0,
        memory: false,
    };
    let taken = run(agenda, 1, SOURCE, take).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
}

fn is_ready(node: &Node) -> bool {
    let disk = node.disks.get(uid(CLONE));
    disk.is_some_and(|disk| disk.phase == Phase::Ready)
}

#[tokio::test]
async fn a_machine_that_runs_is_cloned_from_its_snapshot_alone() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    with_snapshot(&node, &agenda).await;
    let vm = uid(SOURCE).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();

    let refused = run(&agenda, 2, CLONE, cloned(None)).await;
    let failure = refused.failure.clone().unwrap();
    assert!(failure.transient, "{failure:?}");
    assert!(node.disks.get(uid(CLONE)).is_none());
    let done = run(&agenda, 3, CLONE, cloned(Some(101))).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert!(is_ready(&node) && done.percent == 100);
    // Again is the same.
    let again = run(&agenda, 4, CLONE, cloned(Some(101))).await;
    assert_eq!(again.state, State::Success, "{again:?}");

    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    let delete = run(&agenda, 5, CLONE, Work::DeleteDisk).await;
    assert_eq!(delete.state, State::Success, "{delete:?}");
    let done = run(&agenda, 6, CLONE, cloned(None)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert!(is_ready(&node));
}

#[rstest::rstest]
#[case::to_be_done(false, State::Success)]
#[case::to_be_cancelled(true, State::Cancelled)]
#[tokio::test]
async fn a_clone_that_a_killed_daemon_left_is_made_or_undone(
    #[case] is_cancelled: bool,
    #[case] end: State,
) {
    let node = Node::new().await;
    let first = agenda(&node).await;
    let working = work(&first);
    with_snapshot(&node, &first).await;
    drop(working);
    let clone = cloned(Some(101));
    first.submit(uid(2), uid(CLONE), clone).await.unwrap();
    let run = |task: &mut Task| {
        task.state = State::Running;
        task.started_at = 1;
        task.cancelled = is_cancelled;
        true
    };
    first.records.change(&uid(2), run).await.unwrap();
    let node = node.restarted().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let ended = ended(&agenda, uid(2)).await;
    assert_eq!(ended.state, end, "{ended:?}");
    assert_eq!(is_ready(&node), !is_cancelled);
    let delete = Work::DeleteSnapshot { snapshot: uid(101) };
    let deleted = self::run(&agenda, 3, SOURCE, delete).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
}

#[tokio::test]
async fn a_clone_that_fails_leaves_nothing() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    with_snapshot(&node, &agenda).await;
    let failed = run(&agenda, 2, CLONE, cloned(Some(102))).await;
    let failure = failed.failure.clone().unwrap();
    assert!(!failure.transient && failure.message.contains("has no snapshot"));
    assert!(node.disks.get(uid(CLONE)).is_none());
}
