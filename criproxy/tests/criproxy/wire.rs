//! What passes is passed as the bytes that it is.
//!
//! Invariant: nothing that a client or a runtime reports is lost or changed, and nothing that they
//! say ends the proxy.
//! Failure: the assertion shows the bytes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cri_proto::v1;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use prost::Message;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::environment::{TAG, TestEnvironment, eventually};
use crate::raw::{self, answer_with, body, call, frame, open_body, trailers, whole};

const FUTURE: &str = "/runtime.v1.RuntimeService/Levitate";
const EXEC: &str = "/runtime.v1.RuntimeService/ExecSync";
const LIST: &str = "/runtime.v1.RuntimeService/ListContainers";
const RUN: &str = "/runtime.v1.RuntimeService/RunPodSandbox";

type Seen = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// A message whose field 1 is `id` and that has an unknown field.
fn message(id: &str) -> Vec<u8> {
    let known = v1::StopContainerRequest {
        container_id: id.into(),
        timeout: 7,
    };
    [known.encode_to_vec(), vec![0xfa, 0x7f, 3, 1, 2, 3]].concat()
}

/// The primary records calls of `path` and answers them with metadata, two messages and metadata.
fn recording(env: &mut TestEnvironment, secondary: bool, path: &'static str) -> Seen {
    let fake = if secondary {
        &mut env.secondary
    } else {
        &mut env.primary
    };
    fake.kill();
    let seen = Seen::default();
    let record = Arc::clone(&seen);
    let script = move |request: Request<Incoming>| {
        if request.uri().path() != path {
            return None;
        }
        let record = Arc::clone(&record);
        Some(Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            record.lock().unwrap().push((parts.headers, body));
            let mut end = trailers("9");
            end.insert("grpc-message", "no%20way".parse().unwrap());
            end.insert("grpc-status-details-bin", "CAkSBm5vIHdheQ".parse().unwrap());
            end.insert("x-end", "1".parse().unwrap());
            let mut response = answer_with(&[frame(b"one"), frame(b"two")], end);
            response
                .headers_mut()
                .insert("x-begin", "2".parse().unwrap());
            response
        }) as _)
    };
    raw::serve(&fake.socket, Arc::new(script));
    seen
}

#[rstest]
#[case::method_of_the_future(false, FUTURE)]
#[case::method_of_the_future_for_the_secondary(true, FUTURE)]
#[case::owner_routed(false, EXEC)]
#[case::owner_routed_to_the_secondary(true, EXEC)]
#[case::foreign(false, "/grpc.health.v1.Health/Check")]
#[tokio::test]
async fn messages_metadata_and_details_pass_unchanged(
    #[case] secondary: bool,
    #[case] path: &'static str,
) {
    let mut env = TestEnvironment::new();
    let seen = recording(&mut env, secondary, path);
    env.start_proxy().await;
    let mut client = raw::connect(&env.config.listen).await;
    let id = "ab".repeat(28) + if secondary { TAG } else { "00000000" };
    let sent = frame(&message(&id));
    let mut request = call(path, body(&[sent.slice(..3), sent.slice(3..)], None));
    request
        .headers_mut()
        .insert("x-note", "hello".parse().unwrap());
    request
        .headers_mut()
        .insert("x-bytes-bin", "AAEC".parse().unwrap());
    request
        .headers_mut()
        .insert("grpc-timeout", "12345m".parse().unwrap());
    request
        .headers_mut()
        .insert("user-agent", "grpc-go/1.80".parse().unwrap());
    let answer = client.send_request(request).await.unwrap();
    let (headers, data, end) = whole(answer).await;
    assert_eq!(headers["x-begin"], "2");
    assert_eq!(headers["content-type"], "application/grpc");
    assert!(!headers.contains_key("grpc-status"));
    assert_eq!(data, [frame(b"one"), frame(b"two")].concat());
    assert_eq!(end["grpc-status"], "9");
    assert_eq!(end["grpc-message"], "no%20way");
    assert_eq!(end["grpc-status-details-bin"], "CAkSBm5vIHdheQ");
    assert_eq!(end["x-end"], "1");

    let (headers, got) = seen.lock().unwrap().remove(0);
    assert_eq!(got, sent);
    for (name, value) in [
        ("x-note", "hello"),
        ("x-bytes-bin", "AAEC"),
        ("grpc-timeout", "12345m"),
        ("user-agent", "grpc-go/1.80"),
        ("te", "trailers"),
    ] {
        assert_eq!(headers[name], value);
    }
    assert_eq!(headers.len(), 6, "{headers:?}");
}

#[rstest]
#[case::passed(EXEC)]
#[case::merged(LIST)]
#[tokio::test]
async fn an_error_without_messages_keeps_its_shape_and_details(#[case] path: &'static str) {
    let mut env = TestEnvironment::new();
    env.primary.kill();
    let script = move |request: Request<Incoming>| {
        if request.uri().path() != path {
            return None;
        }
        Some(Box::pin(async {
            let mut response = answer_with(&[], HeaderMap::new());
            *response.body_mut() = body(&[], None);
            *response.headers_mut() = trailers("5");
            let headers = response.headers_mut();
            headers.insert("content-type", "application/grpc".parse().unwrap());
            headers.insert("grpc-status-details-bin", "CAU".parse().unwrap());
            response
        }) as _)
    };
    raw::serve(&env.primary.socket, Arc::new(script));
    env.start_proxy().await;
    let mut client = raw::connect(&env.config.listen).await;
    let message: &[u8] = if path == LIST {
        b""
    } else {
        &message(&"ab".repeat(32))
    };
    let request = call(path, body(&[frame(message)], None));
    let (headers, data, _) = whole(client.send_request(request).await.unwrap()).await;
    assert!(data.is_empty());
    assert_eq!(headers["grpc-status"], "5");
    assert_eq!(headers["grpc-status-details-bin"], "CAU");
}

#[rstest]
#[case::passed(EXEC)]
#[case::merged(LIST)]
#[case::unknown(FUTURE)]
#[tokio::test]
async fn a_call_that_is_given_up_is_given_up_at_the_runtime(#[case] path: &'static str) {
    struct DropNotifier(Option<oneshot::Sender<()>>);
    impl Drop for DropNotifier {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }
    let mut env = TestEnvironment::new();
    env.primary.kill();
    let (reported, gone) = oneshot::channel();
    let reported = Mutex::new(Some(DropNotifier(Some(reported))));
    let arrived = Arc::new(tokio::sync::Notify::new());
    let arrival = Arc::clone(&arrived);
    let script = move |request: Request<Incoming>| {
        let is_ours = request.headers().contains_key("x-ours");
        if request.uri().path() != path || !is_ours {
            return None;
        }
        let reported = reported.lock().unwrap().take();
        arrival.notify_one();
        Some(Box::pin(async move {
            let _notifier = reported;
            std::future::pending().await
        }) as _)
    };
    raw::serve(&env.primary.socket, Arc::new(script));
    env.start_proxy().await;
    let mut client = raw::connect(&env.config.listen).await;
    let message: &[u8] = if path == LIST {
        b""
    } else {
        &message(&"ab".repeat(32))
    };
    let mut request = call(path, body(&[frame(message)], None));
    request.headers_mut().insert("x-ours", "1".parse().unwrap());
    let call = tokio::spawn(client.send_request(request));
    arrived.notified().await;
    call.abort();
    let reported = tokio::time::timeout(Duration::from_secs(60), gone).await;
    reported.expect("the runtime never learned").unwrap();
}

#[tokio::test]
async fn a_conversation_in_both_directions_is_not_held_back() {
    let mut env = TestEnvironment::new();
    env.primary.kill();
    let script = |request: Request<Incoming>| {
        if request.uri().path() != FUTURE {
            return None;
        }
        Some(Box::pin(async move {
            let (sender, answer) = open_body();
            let mut reported = request.into_body();
            tokio::spawn(async move {
                // An echo.
                while let Some(Ok(frame)) = reported.frame().await {
                    if let Ok(data) = frame.into_data() {
                        let _ = sender.send(Frame::data(data)).await;
                    }
                }
                let _ = sender.send(Frame::trailers(trailers("0"))).await;
            });
            http::Response::new(answer)
        }) as _)
    };
    raw::serve(&env.primary.socket, Arc::new(script));
    env.start_proxy().await;
    let mut client = raw::connect(&env.config.listen).await;
    // The server speaks first or waits for us: nothing has been said yet when the answer begins.
    let (say, reported) = open_body();
    let answer = client.send_request(call(FUTURE, reported)).await.unwrap();
    let mut received = answer.into_body();
    for word in ["a", "b", "c"] {
        let word = frame(word.as_bytes());
        say.send(Frame::data(word.clone())).await.unwrap();
        let data = received
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap();
        assert_eq!(data, word);
    }
    drop(say);
    let end = received.frame().await.unwrap().unwrap();
    assert_eq!(end.trailers_ref().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn a_list_of_sixteen_mebibytes_passes_with_unknown_fields() {
    let mut env = TestEnvironment::new();
    env.primary.kill();
    let container = v1::Container {
        id: "p".into(),
        ..Default::default()
    };
    let containers = vec![container];
    let mut list = v1::ListContainersResponse { containers }.encode_to_vec();
    // Field 500, an unknown one, of nearly 16 MiB.
    let size = 16 * 1024 * 1024 - 4096;
    list.extend(criproxy::wire::tagged(500, &vec![7; size]));
    let list = Bytes::from(list);
    let reported = list.clone();
    let script = move |request: Request<Incoming>| {
        if request.uri().path() != LIST {
            return None;
        }
        let reported = frame(&reported);
        Some(Box::pin(async move { answer_with(&[reported], trailers("0")) }) as _)
    };
    raw::serve(&env.primary.socket, Arc::new(script));
    env.start_proxy().await;
    env.secondary.with(|state| {
        let mine = v1::Container {
            id: "s".into(),
            created_at: 1,
            ..Default::default()
        };
        state.containers.insert("s".into(), mine)
    });
    let mut client = raw::connect(&env.config.listen).await;
    let started = Instant::now();
    let request = call(LIST, body(&[frame(b"")], None));
    let (_, data, end) = whole(client.send_request(request).await.unwrap()).await;
    assert_eq!(end["grpc-status"], "0");
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{:?}",
        started.elapsed()
    );
    let merged = criproxy::wire::payload(&data).unwrap();
    assert!(merged.starts_with(&list));
    let all = v1::ListContainersResponse::decode(merged)
        .unwrap()
        .containers;
    let ids: Vec<_> = all.iter().map(|c| &*c.id).collect();
    assert_eq!(ids, ["p", "s"]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_unavailable() {
    let mut env = TestEnvironment::new();
    env.primary.kill();
    let script = |request: Request<Incoming>| {
        if request.uri().path() != EXEC {
            return None;
        }
        Some(Box::pin(async {
            let (sender, answer) = open_body();
            let half = frame(b"half of it").slice(..7);
            sender.send(Frame::data(half)).await.unwrap();
            // Nothing more comes while the connection lasts.
            std::mem::forget(sender);
            http::Response::new(answer)
        }) as _)
    };
    let server = raw::serve(&env.primary.socket, Arc::new(script));
    env.start_proxy().await;
    let mut client = raw::connect(&env.config.listen).await;
    let request = call(EXEC, body(&[frame(&message(&"ab".repeat(32)))], None));
    let mut answer = client.send_request(request).await.unwrap().into_body();
    let half = answer.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(half.len(), 7);
    server.abort();
    let end = answer.frame().await.unwrap().unwrap();
    assert_eq!(end.trailers_ref().unwrap()["grpc-status"], "14");
}

#[rstest]
#[case::half_a_prefix(b"\0\0", "3")]
#[case::half_a_message(b"\0\0\0\0\x10abc", "3")]
#[case::nothing(b"", "3")]
#[case::huge(b"\0\xff\xff\xff\xff", "8")]
#[case::just_too_long(b"\0\x01\0\0\x01", "8")]
#[case::compressed(b"\x01\0\0\0\x01a", "12")]
#[case::unknown_flag(b"\xff\0\0\0\x01a", "12")]
#[tokio::test]
async fn a_hostile_request_gets_an_error_and_the_next_one_an_answer(
    #[case] bytes: &'static [u8],
    #[case] want: &str,
) {
    let (env, mut cri) = TestEnvironment::start().await;
    let mut client = raw::connect(&env.config.listen).await;
    for path in [RUN, LIST] {
        let request = call(path, body(&[Bytes::from_static(bytes)], None));
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(raw::code(answer).await, want);
    }
    cri.run("", "").await.unwrap();
}

#[tokio::test]
async fn two_messages_where_one_is_allowed_are_refused() {
    let (env, _cri) = TestEnvironment::start().await;
    let mut client = raw::connect(&env.config.listen).await;
    let request = call(LIST, body(&[frame(b""), frame(b"")], None));
    let answer = client.send_request(request).await.unwrap();
    assert_eq!(raw::code(answer).await, "3");
}

#[tokio::test]
async fn a_message_that_is_no_protobuf_is_the_primarys_to_refuse() {
    let (env, _cri) = TestEnvironment::start().await;
    let mut client = raw::connect(&env.config.listen).await;
    for path in [RUN, EXEC, "/runtime.v1.ImageService/PullImage"] {
        let request = call(path, body(&[frame(b"\x0a\x7f\xff")], None));
        let answer = client.send_request(request).await.unwrap();
        // The term of tonic.
        assert_eq!(raw::code(answer).await, "13", "{path}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_http2_end_their_connection_alone() {
    let (env, mut cri) = TestEnvironment::start().await;
    let mut stream = UnixStream::connect(&env.config.listen).await.unwrap();
    stream.write_all(&[0x16; 100]).await.unwrap();
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap()
        .ok();
    cri.run("", "").await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_restarts_is_reached_by_the_next_call() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let pod = cri.run("", "").await.unwrap();
    let container = cri.container(&pod).await.unwrap();
    env.primary.kill();
    env.primary.start();
    eventually("the primary to answer", async || {
        cri.exec(&container).await.is_ok()
    })
    .await;
}
