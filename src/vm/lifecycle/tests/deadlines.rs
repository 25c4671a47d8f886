//! Calls of libvirt with an unknown outcome, and starts that are half done.
//!
//! Invariant: the row says what the machine does, whatever had become of the call; the same request again
//! succeeds.
//! Failure: the phase, or what was left.

use std::time::Duration;

use libvirt::{Hypervisor, Missed, State};
use rstest::rstest;

use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::state::Phase;

#[rstest]
#[case::never_begun("start", Missed::Nothing)]
#[case::begun("start", Missed::Everything)]
#[case::begun_later("start", Missed::Later)]
#[case::not_defined("define", Missed::Nothing)]
#[case::defined("define", Missed::Everything)]
#[tokio::test]
async fn a_start_without_an_answer_is_undone_and_may_be_repeated(
    #[case] call: &'static str,
    #[case] missed: Missed,
) {
    let node = Node::new().await;
    let id = node.created().await;
    node.hypervisor.miss_deadline(call, missed);
    let late = node.containers.start(&id).await;
    assert!(matches!(late, Err(Error::Hypervisor { .. })), "{late:?}");
    assert_eq!(node.phase(&id), Phase::Created);
    node.hypervisor.end_late_starts().await;
    assert_eq!(node.domain(&id).await, None);
    node.containers.start(&id).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Running);
    assert_eq!(node.domain(&id).await, Some(State::Active));
}

/// The end of the emulator is an event as well as the failure of the call.
#[tokio::test]
async fn an_emulator_that_ends_during_its_start_is_one_failed_start() {
    let node = Node::new().await;
    let id = node.created().await;
    node.hypervisor.start_partly("the emulator ended");
    node.containers.start(&id).await.unwrap_err();
    assert_eq!(node.phase(&id), Phase::Exited);
    assert_eq!(node.exit(&id), (128, "StartError".to_owned()));
    let message = &node.row(&id).exit.as_ref().unwrap().message.clone();
    assert!(message.contains("the emulator ended"), "{message}");
    assert_eq!(node.domain(&id).await, None);
}

#[rstest]
#[case::before_the_kill(Missed::Nothing)]
#[case::after_the_kill(Missed::Everything)]
#[tokio::test]
async fn a_kill_without_an_answer_is_repeated(#[case] missed: Missed) {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.miss_deadline("destroy", missed);
    // Where the guest has ended, its event may end the stop before the call does.
    let first = node.containers.stop(&id, Duration::ZERO).await;
    assert!(missed == Missed::Everything || first.is_err(), "{first:?}");
    node.containers.stop(&id, Duration::ZERO).await.unwrap();
    assert_eq!(node.phase(&id), Phase::Exited);
    node.containers.remove(&id).await.unwrap();
    assert!(node.hypervisor.list().await.unwrap().is_empty());
}

#[rstest]
#[case::before_its_removal(Missed::Nothing)]
#[case::after_its_removal(Missed::Everything)]
#[tokio::test]
async fn a_removal_without_an_answer_is_repeated(#[case] missed: Missed) {
    let node = Node::new().await;
    let id = node.started().await;
    node.containers.stop(&id, Duration::ZERO).await.unwrap();
    node.hypervisor.miss_deadline("undefine", missed);
    let first = node.containers.remove(&id).await;
    if first.is_err() {
        node.containers.remove(&id).await.unwrap();
    }
    assert!(node.hypervisor.list().await.unwrap().is_empty());
}
