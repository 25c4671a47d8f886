//! A runtime that is away, hangs, is slow, talks nonsense or forgets.
//!
//! Invariant: ordinary pods notice nothing of a broken secondary, and its pods never look gone.
//! Failure: the assertion shows what kubelet would have believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cri_proto::v1;
use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use service::settings::Timespan;

use crate::environment::{Cri, FANOUT, LONG, TAG, TestEnvironment, eventually, waited_out};
use crate::fake::{Mood, STREAMS, State};
use crate::raw;

mod forgetful;

/// A pod of each runtime, seen by kubelet: sandbox and container of the ordinary one, then of the
/// VM.
async fn pods(cri: &mut Cri) -> [String; 4] {
    let pod = cri.run("", "").await.unwrap();
    let container = cri.container(&pod).await.unwrap();
    let vm = cri.run("vmlet", "").await.unwrap();
    let vm_container = cri.container(&vm).await.unwrap();
    cri.sandboxes().await.unwrap();
    cri.containers().await.unwrap();
    cri.container_status(&vm_container).await.unwrap();
    [pod, container, vm, vm_container]
}

/// What has to hold while the secondary does not answer.
async fn nothing_is_missing(cri: &mut Cri, [pod, container, vm, vm_container]: &[String; 4]) {
    assert_eq!(cri.sandboxes().await.unwrap(), [pod.clone(), vm.clone()]);
    assert_eq!(
        cri.containers().await.unwrap(),
        [container.clone(), vm_container.clone()]
    );
    let filter = v1::ContainerFilter {
        label_selector: [("pod".to_owned(), vm.clone())].into(),
        ..Default::default()
    };
    let request = v1::ListContainersRequest {
        filter: Some(filter),
    };
    let found = cri
        .runtime
        .list_containers(request)
        .await
        .unwrap()
        .into_inner()
        .containers;
    assert_eq!(found.len(), 1);
    let status = cri.container_status(vm_container).await.unwrap();
    assert_eq!(
        status.state,
        i32::from(v1::ContainerState::ContainerRunning)
    );
    assert_eq!(cri.exec(container).await.unwrap(), b"containerd");
}

#[tokio::test]
async fn a_killed_secondarys_pods_stay_and_everything_about_them_waits() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let all = pods(&mut cri).await;
    env.secondary.kill();
    nothing_is_missing(&mut cri, &all).await;
    let [_, _, vm, vm_container] = &all;
    for error in [
        cri.exec(vm_container).await.unwrap_err(),
        cri.stop_sandbox(vm).await.unwrap_err(),
        cri.container(vm).await.unwrap_err(),
        cri.run("vmlet", "").await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message().contains("vmlet"), "{error}");
    }
    cri.run("", "").await.unwrap();

    env.secondary.start();
    eventually("the secondary to be used again", async || {
        cri.exec(vm_container).await.is_ok()
    })
    .await;
    assert_eq!(cri.sandboxes().await.unwrap().len(), 3);
}

#[tokio::test]
async fn three_hundred_stops_delay_neither_lists_nor_probes() {
    let (env, mut cri) = TestEnvironment::start_patient().await;
    let [_, container, vm, vm_container] = pods(&mut cri).await;
    let secondary = &env.secondary;
    secondary.mood(Mood::Lasting("StopContainer"));
    let mut stops = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let mut runtime = cri.runtime.clone();
        let container_id = vm_container.clone();
        stops.spawn(async move {
            let timeout = 300;
            let request = v1::StopContainerRequest {
                container_id,
                timeout,
            };
            runtime.stop_container(request).await
        });
    }
    let most = usize::try_from(STREAMS).unwrap();
    eventually("as many stops as the runtime takes", async || {
        let stops =
            |state: &mut State| state.calls.iter().filter(|c| *c == "StopContainer").count();
        secondary.with(stops) >= most
    })
    .await;
    secondary.calls();
    let others = async {
        assert_eq!(
            cri.containers().await.unwrap(),
            [container, vm_container.clone()]
        );
        assert!(cri.sandboxes().await.unwrap().contains(&vm));
        assert_eq!(cri.exec(&vm_container).await.unwrap(), b"vmlet");
    };
    let others = tokio::time::timeout(LONG / 2, others).await;
    others.expect("no wait for stops");
    for call in ["ListContainers", "ListPodSandbox", "ExecSync"] {
        assert!(secondary.was_called(call), "{call} waits for stops");
    }
    stops.abort_all();
}

#[tokio::test]
async fn a_secondary_killed_before_its_next_list_keeps_its_objects() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    let container = cri.container(&vm).await.unwrap();
    env.secondary.kill();
    assert_eq!(cri.sandboxes().await.unwrap(), [vm]);
    assert_eq!(cri.containers().await.unwrap(), [container]);
}

#[tokio::test]
async fn a_hung_secondary_costs_a_list_the_deadline_and_soon_nothing() {
    let (env, mut cri) = TestEnvironment::start_patient().await;
    let all = pods(&mut cri).await;
    let secondary = &env.secondary;
    secondary.mood(Mood::Hung);
    for _ in 0..2 {
        let sandboxes = waited_out(secondary, "ListPodSandbox", cri.sandboxes()).await;
        assert_eq!(sandboxes.unwrap(), [all[0].clone(), all[2].clone()]);
    }
    let containers = waited_out(secondary, "ListContainers", cri.containers()).await;
    assert_eq!(containers.unwrap(), [all[1].clone(), all[3].clone()]);

    secondary.calls();
    let next = tokio::time::timeout(LONG / 2, cri.sandboxes()).await;
    next.expect("no wait for it").unwrap();
    for _ in 0..5 {
        nothing_is_missing(&mut cri, &all).await;
    }
    assert_eq!(secondary.calls(), [""; 0], "it is left alone");

    secondary.mood(Mood::Well);
    tokio::time::pause();
    tokio::time::advance(LONG).await;
    tokio::time::resume();
    assert_eq!(cri.sandboxes().await.unwrap().len(), 2);
    assert!(secondary.was_called("ListPodSandbox"));
    let vm = cri.run("vmlet", "").await.unwrap();
    assert!(cri.sandboxes().await.unwrap().contains(&vm));
}

#[tokio::test]
async fn a_slow_secondary_is_waited_for_within_the_deadline() {
    let (env, mut cri) = TestEnvironment::start_patient().await;
    let all = pods(&mut cri).await;
    let secondary = &env.secondary;
    let permits = Arc::new(Semaphore::new(0));
    secondary.mood(Mood::Held(Arc::clone(&permits)));
    let made = format!("1{:0>55}{TAG}", "");
    secondary.add_sandbox(&made);
    secondary.calls();
    let answers = async {
        eventually("the secondary to be asked", async || {
            secondary.was_called("ListPodSandbox")
        })
        .await;
        permits.add_permits(1);
    };
    let (sandboxes, ()) = tokio::join!(cri.sandboxes(), answers);
    assert!(sandboxes.unwrap().contains(&made), "it was not waited for");

    // One that answers after the deadline was asked without success, and disturbs no later call.
    waited_out(secondary, "ListPodSandbox", cri.sandboxes())
        .await
        .unwrap();
    secondary.with(|state| state.sandboxes.remove(&made));
    permits.add_permits(Semaphore::MAX_PERMITS / 2);
    nothing_is_missing(&mut cri, &all).await;
}

#[tokio::test]
async fn a_secondary_that_is_still_starting_is_treated_as_away() {
    let (env, mut cri) = TestEnvironment::start().await;
    let all = pods(&mut cri).await;
    env.secondary
        .mood(Mood::Refusing(Status::unavailable("starting")));
    nothing_is_missing(&mut cri, &all).await;
}

#[tokio::test]
async fn a_secondary_that_talks_nonsense_is_treated_as_away() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let all = pods(&mut cri).await;
    env.secondary.kill();
    let listener = UnixListener::bind(&env.secondary.socket).unwrap();
    let nonsense = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await;
        }
    });
    nothing_is_missing(&mut cri, &all).await;
    nonsense.abort();
    let _ = nonsense.await;
    env.secondary.start();
    eventually("the secondary to be used again", async || {
        cri.exec(&all[3]).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_secondary_that_accepts_and_never_replies_counts_as_unavailable() {
    let (mut env, mut cri) =
        TestEnvironment::start_with(|limits| limits.fanout_timeout = Timespan::from_secs(3)).await;
    let all = pods(&mut cri).await;
    env.secondary.kill();
    let _silent = UnixListener::bind(&env.secondary.socket).unwrap();
    nothing_is_missing(&mut cri, &all).await;
}

#[tokio::test]
async fn a_dead_primary_is_unavailable_and_calls_of_the_secondary_pass() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let [_, container, vm, vm_container] = pods(&mut cri).await;
    env.primary.kill();
    for error in [
        cri.sandboxes().await.unwrap_err(),
        cri.containers().await.unwrap_err(),
        cri.exec(&container).await.unwrap_err(),
        cri.run("", "").await.unwrap_err(),
        cri.runtime
            .status(v1::StatusRequest::default())
            .await
            .unwrap_err(),
        cri.runtime
            .version(v1::VersionRequest::default())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message().contains("containerd"), "{error}");
    }
    assert_eq!(cri.exec(&vm_container).await.unwrap(), b"vmlet");
    cri.stop_sandbox(&vm).await.unwrap();

    env.secondary.kill();
    assert_eq!(
        cri.exec(&vm_container).await.unwrap_err().code(),
        Code::Unavailable
    );
    assert_eq!(cri.sandboxes().await.unwrap_err().code(), Code::Unavailable);

    env.primary.start();
    env.secondary.start();
    eventually("both to be used again", async || {
        cri.sandboxes().await.is_ok_and(|all| all.len() == 2)
            && cri.exec(&vm_container).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn the_primarys_own_refusal_is_the_answer_of_a_merged_call() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.primary
        .mood(Mood::Refusing(Status::data_loss("disk on fire")));
    for error in [
        cri.sandboxes().await.unwrap_err(),
        cri.runtime
            .status(v1::StatusRequest::default())
            .await
            .unwrap_err(),
        cri.images
            .image_fs_info(v1::ImageFsInfoRequest::default())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::DataLoss);
        assert_eq!(error.message(), "disk on fire");
    }
}

/// Bytes behind a well-formed head and before a good end.
#[rstest]
#[case::no_protobuf(b"\x0a\x7f\xff")]
#[case::no_protobuf_inside(b"\x0a\x02\x0a\x7f")]
#[case::no_unicode(b"\x0a\x03\x0a\x01\xff")]
#[tokio::test]
async fn a_secondary_with_undecodable_replies_counts_as_unavailable(#[case] bytes: &'static [u8]) {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let all = pods(&mut cri).await;
    env.secondary.kill();
    let received = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&received);
    let script = move |_| {
        seen.store(true, Ordering::Relaxed);
        Some(
            Box::pin(async move { raw::answer_with(&[raw::frame(bytes)], raw::trailers("0")) })
                as _,
        )
    };
    let nonsense = raw::serve(&env.secondary.socket, Arc::new(script));
    eventually("the nonsense to arrive", async || {
        received.load(Ordering::Relaxed)
    })
    .await;
    nothing_is_missing(&mut cri, &all).await;
    nonsense.abort();
    env.secondary.start();
    let [_, _, _, vm_container] = &all;
    eventually("the secondary to be used again", async || {
        cri.exec(vm_container).await.is_ok()
    })
    .await;
}
