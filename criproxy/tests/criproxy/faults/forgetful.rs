//! A secondary that comes back with less than it had.
//!
//! Invariant: what is missing is believed only when the secondary says it for a while.
//! Failure: the assertion shows what kubelet would have believed.

use super::*;

#[tokio::test]
async fn a_secondary_that_comes_back_with_nothing_is_not_believed_for_a_while() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let all = pods(&mut cri).await;
    env.secondary.kill();
    let kept = env.secondary.with(|state| {
        (
            std::mem::take(&mut state.sandboxes),
            std::mem::take(&mut state.containers),
        )
    });
    env.secondary.calls();
    env.secondary.start();
    eventually("the secondary to be asked", async || {
        cri.sandboxes().await.unwrap();
        env.secondary.was_called("ListPodSandbox")
    })
    .await;
    nothing_is_missing(&mut cri, &all).await;
    env.secondary
        .with(|state| (state.sandboxes, state.containers) = kept);
    nothing_is_missing(&mut cri, &all).await;
    assert_eq!(cri.exec(&all[3]).await.unwrap(), b"vmlet");
    // What is removed from now on stays removed.
    env.secondary.with(|state| state.containers.clear());
    assert_eq!(cri.containers().await.unwrap(), [all[1].clone()]);
}

#[tokio::test]
async fn a_secondary_that_has_nothing_any_more_is_believed_in_the_end() {
    let (mut env, mut cri) =
        TestEnvironment::start_with(|limits| limits.empty_grace = Timespan::from_secs(5)).await;
    let all = pods(&mut cri).await;
    env.secondary.kill();
    env.secondary.with(|state| {
        state.sandboxes.clear();
        state.containers.clear();
    });
    env.secondary.start();
    nothing_is_missing(&mut cri, &all).await;
    eventually("the empty list to be believed", async || {
        cri.sandboxes().await.unwrap() == [all[0].clone()]
    })
    .await;
}

#[tokio::test]
async fn a_secondary_that_was_never_there_is_not_missed() {
    let mut env = TestEnvironment::new();
    env.secondary.kill();
    let mut cri = env.start_proxy().await;
    let pod = cri.run("", "").await.unwrap();
    assert_eq!(cri.sandboxes().await.unwrap(), [pod]);
    cri.stop_sandbox("unknown").await.unwrap();
    let error = cri.run("vmlet", "").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let started = Instant::now();
    cri.runtime
        .status(v1::StatusRequest::default())
        .await
        .unwrap();
    assert!(started.elapsed() < FANOUT);
}

#[tokio::test]
async fn lists_fail_when_what_a_secondary_had_is_lost() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    pods(&mut cri).await;
    let mut cri = env.lose_memory().await;
    for error in [
        cri.sandboxes().await.unwrap_err(),
        cri.containers().await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message().contains("vmlet"), "{error}");
    }
    // Calls about ordinary pods continue.
    cri.run("", "").await.unwrap();
    env.secondary.start();
    eventually("lists to be whole again", async || {
        cri.sandboxes().await.is_ok()
    })
    .await;
}
