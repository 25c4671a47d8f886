//! Requests of a daemon that was killed, which reach the emulator late.
//!
//! Invariant: disks are real files, the hypervisor is a fake.
//! Failure: a test prints what did not end as it should.

use super::*;

/// libvirtd may still have the pivot of the daemon that was killed: it would be about the next job.
#[tokio::test]
async fn a_merge_begins_when_no_request_of_a_killed_daemon_can_be_left() {
    let (node, domain) = killed_at(Point::Paused).await;
    settled(&node).await;
    tokio::time::pause();
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let begun = tokio::time::Instant::now();
    let deleted = run(&agenda, 11, delete(1)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(begun.elapsed().as_secs() >= 30);
    ensure_agreed(&node, domain).await;
}

/// Or the pause.
#[rstest::rstest]
#[case::by_the_daemon(false)]
#[case::by_its_owner(true)]
#[tokio::test]
async fn a_guest_that_a_late_request_pauses_is_resumed_again(#[case] is_owner: bool) {
    let (node, domain) = killed_at(Point::Paused).await;
    settled(&node).await;
    assert_eq!(power(&node, domain).await, Power::On);
    if is_owner {
        node.containers.pause(uid(9)).await.unwrap();
    } else {
        node.hypervisor.suspend(domain).await.unwrap();
    }
    tokio::time::pause();
    tokio::time::sleep(std::time::Duration::from_secs(100)).await;
    let is_on = power(&node, domain).await == Power::On;
    assert_eq!(is_on, !is_owner);
}

/// A look at the guest takes long: the pause that it finds may be that of the next merge.
#[tokio::test]
async fn no_merge_begins_before_a_guest_is_resumed_for_the_last_time() {
    let (node, domain) = killed_at(Point::Paused).await;
    settled(&node).await;
    let before = node.hypervisor.resumes(domain);
    let looks = node.hypervisor.hold_looks().await;
    tokio::time::pause();
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(11), uid(9), delete(1)).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(!node.hypervisor.has_job(domain));
    assert_eq!(node.hypervisor.resumes(domain), before);
    drop(looks);
    let deleted = ended(&agenda, uid(11)).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert_eq!(node.hypervisor.resumes(domain), before + 1);
    ensure_agreed(&node, domain).await;
}

/// What waits for the repetition of a task sleeps for a minute.
#[tokio::test]
async fn a_guest_that_a_merge_left_paused_is_resumed_soon_whatever_waits_already() {
    let (node, domain) = killed_at(Point::Copies).await;
    node.containers.reconcile().await.unwrap();
    tokio::task::yield_now().await;
    node.disks.begin_pivot(uid(9), 0, true).await.unwrap();
    node.hypervisor.suspend(domain).await.unwrap();
    settled(&node).await;
    assert_eq!(power(&node, domain).await, Power::On);
}
