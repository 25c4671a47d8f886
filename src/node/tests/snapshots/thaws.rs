//! Guests that are to thaw: after an interruption, before a save, by a reset.
//!
//! Invariant: disks are real files, the hypervisor is a fake.
//! Failure: a test prints what did not end as it should.

use super::*;

/// A machine whose guest an attempt has frozen, and left so.
async fn frozen(hypervisor: FakeHypervisor) -> (Node, Uuid) {
    let (node, _, domain) = running(hypervisor).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    let set = node.disks.set_freezes(uid(9), change.layer, true);
    set.await.unwrap();
    (node, domain)
}

/// Memory that was saved would have a frozen guest, which no record says.
#[rstest::rstest]
#[case::thaws(FakeHypervisor::default().agent_answering([json!(1)]), true)]
#[case::stays_frozen(FakeHypervisor::default(), false)]
#[tokio::test]
async fn a_guest_is_saved_only_when_it_is_thawed(
    #[case] guest: FakeHypervisor,
    #[case] thaws: bool,
) {
    let (node, _) = frozen(guest).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let saved = run(&agenda, 1, Work::Save).await;
    assert_eq!(saved.state == State::Success, thaws, "{saved:?}");
    assert_eq!(node.disks.get(uid(9)).unwrap().memory.is_some(), thaws);
    assert_eq!(node.disks.change(uid(9)).is_none(), thaws);
    let failure = saved.failure.clone();
    assert!(failure.is_none_or(|failure| failure.transient && failure.message.contains("reset")));
}

/// What boots after a reset may have no agent, and is not frozen.
#[tokio::test]
async fn a_reset_ends_the_freeze_of_an_interrupted_snapshot() {
    let (node, domain) = frozen(FakeHypervisor::default()).await;
    node.containers
        .on_event(libvirt::Event::Reset(domain))
        .await;
    assert_eq!(node.disks.change(uid(9)), None);
    assert!(commands(&node).is_empty());
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
}

/// No other request comes, and no round.
#[tokio::test]
async fn a_guest_that_did_not_thaw_is_requested_again_soon() {
    let refusal = || json!({"error": "x"});
    let freezes = [json!({}), json!(2)];
    let stays = [refusal(), refusal(), refusal()];
    let replies = freezes.into_iter().chain(stays).chain([json!(2)]);
    let guest = FakeHypervisor::default().agent_answering(replies);
    let (node, _, domain) = running(guest).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let mut changes = node.disks.changes();
    let refused = failure(&agenda, 1, take(1, 30)).await;
    assert!(refused.transient, "{refused:?}");
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, settled).await.unwrap();
    assert_eq!(commands(&node).len(), 5);
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    let taken = node.disks.snapshot(uid(9), snapshot(1)).await.unwrap();
    assert!(taken.is_some_and(|taken| taken.running && !taken.quiesced));
}

/// What ends an earlier one sleeps for a minute by then.
#[tokio::test]
async fn a_guest_that_did_not_thaw_after_a_second_snapshot_is_requested_again_soon() {
    let (node, domain) = frozen(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    node.containers.reconcile().await.unwrap();
    let failed = 7 * 3;
    tokio::time::pause();
    while commands(&node).len() < failed {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    tokio::time::resume();
    let refusal = || json!({"error": "x"});
    let thaws_and_freezes = [json!(1), json!({}), json!(2)];
    let stays = [refusal(), refusal(), refusal()];
    let replies = thaws_and_freezes.into_iter().chain(stays);
    node.hypervisor
        .start_agent(domain, replies.chain([json!(2)]));
    let mut changes = node.disks.changes();
    let refused = failure(&agenda, 1, take(2, 30)).await;
    assert!(refused.transient, "{refused:?}");
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::pause();
    let soon = std::time::Duration::from_secs(10);
    tokio::time::timeout(soon, settled).await.unwrap();
    assert_eq!(commands(&node).len(), failed + 6);
    let taken = node.disks.snapshot(uid(9), snapshot(2)).await.unwrap();
    assert!(taken.is_some_and(|taken| !taken.quiesced));
    let first = node.disks.snapshot(uid(9), snapshot(1)).await.unwrap();
    assert_eq!(first, None);
}

/// What boots then has no agent.
#[rstest::rstest]
#[case::frozen(json!(2), true)]
#[case::not_frozen(json!({"error": "x"}), false)]
#[tokio::test]
async fn a_reset_while_a_task_requests_the_thaw_ends_the_freeze(
    #[case] answer: serde_json::Value,
    #[case] is_taken: bool,
) {
    let guest = FakeHypervisor::default().agent_answering([json!({}), answer]);
    let (node, _, domain) = running(guest).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let task = run(&agenda, 1, take(1, 30));
    let reset = async {
        while commands(&node).len() < 2 {
            tokio::task::yield_now().await;
        }
        let event = libvirt::Event::Reset(domain);
        node.containers.on_event(event).await;
    };
    let (done, ()) = tokio::join!(task, reset);
    assert_eq!(node.disks.change(uid(9)), None, "{done:?}");
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(
        done.snapshot.map(|taken| taken.quiesced),
        is_taken.then_some(false)
    );
    let failure = done.failure.clone();
    assert!(failure.is_none_or(|failure| failure.message.contains("without quiesce")));
    // Nothing is left that keeps the machine from its next one.
    assert_eq!(run(&agenda, 2, take(2, 0)).await.state, State::Success);
}

#[tokio::test]
async fn a_paused_guest_is_not_requested_to_freeze() {
    let (node, ..) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    run(&agenda, 1, Work::Pause).await;
    let refused = failure(&agenda, 2, take(1, 30)).await;
    assert!(refused.transient, "{refused:?}");
    assert!(commands(&node).is_empty());
    // Without that it has no part in it.
    assert_eq!(run(&agenda, 3, take(1, 0)).await.state, State::Success);
}
