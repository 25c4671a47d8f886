//! Merges whose daemon was killed.
//!
//! Invariant: disks are real files, the hypervisor is a fake.
//! Failure: a test prints what did not end as it should.

use super::*;

#[rstest::rstest]
#[case(Point::Recorded)]
#[case(Point::Copies)]
#[case(Point::Paused)]
#[case(Point::Pivoted)]
#[case(Point::Committed)]
#[tokio::test]
async fn a_deletion_that_was_killed_anywhere_goes_on(#[case] point: Point) {
    let (node, domain) = killed_at(point).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    // It waits for requests that the daemon may have left.
    tokio::time::pause();
    let deleted = run(&agenda, 11, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    assert_eq!(power(&node, domain).await, Power::On);
    ensure_agreed(&node, domain).await;
}

/// No task is left that would.
#[rstest::rstest]
#[case(Point::Paused)]
#[case(Point::Pivoted)]
#[case(Point::Committed)]
#[tokio::test]
async fn reconciliation_resumes_the_guest_of_a_merge_that_was_killed(#[case] point: Point) {
    let (node, domain) = killed_at(point).await;
    let mut changes = node.disks.changes();
    node.containers.reconcile().await.unwrap();
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, settled).await.unwrap();
    assert_eq!(power(&node, domain).await, Power::On);
    let is_merged = point >= Point::Pivoted;
    assert_eq!(node.disks.files(uid(9)).below.is_empty(), is_merged);
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert!(!node.hypervisor.has_job(domain));
}

/// Memory that was saved then would have a guest that is not resumed.
#[tokio::test]
async fn a_guest_that_is_paused_for_a_merge_is_saved_as_one_that_runs() {
    let (node, _) = killed_at(Point::Paused).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let saved = run(&agenda, 11, Work::Save).await;
    assert_eq!(saved.state, State::Success, "{saved:?}");
    let memory = node.disks.get(uid(9)).unwrap().memory.clone();
    assert!(memory.is_some_and(|memory| !memory.paused));
}

/// A request to run is the owner's, and comes back.
#[tokio::test]
async fn a_guest_is_not_resumed_in_the_middle_of_a_pivot() {
    let (node, domain) = killed_at(Point::Paused).await;
    let refused = node.containers.unpause(uid(9)).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    assert_eq!(power(&node, domain).await, Power::Paused(Pause::Asked));
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    tokio::time::pause();
    assert_eq!(run(&agenda, 11, delete(1)).await.state, State::Success);
    node.containers.unpause(uid(9)).await.unwrap();
    ensure_agreed(&node, domain).await;
}

/// It was started so, and no request of this process says so.
#[tokio::test]
async fn a_guest_that_did_not_run_before_a_merge_that_was_killed_does_not_afterwards() {
    let (node, domain) = killed_with(Point::Paused, false).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    tokio::time::pause();
    let deleted = run(&agenda, 11, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    tokio::time::sleep(std::time::Duration::from_secs(100)).await;
    assert_eq!(power(&node, domain).await, Power::Paused(Pause::Asked));
    assert_eq!(node.hypervisor.resumes(domain), 0);
}
