//! The trace of kubelet reaches the runtimes.
//!
//! Invariant: W3C Trace Context arrives as it came, also where the proxy sends a request to several
//! runtimes, looks into it, or sends another one on its behalf.
//! Failure: the headers that a runtime got are shown.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cri_proto::v1;
use http::{HeaderMap, Request};
use hyper::body::Incoming;
use prost::Message;
use rstest::rstest;

use crate::environment::{TAG, TestEnvironment, sandbox_config};
use crate::raw::{self, body, call, frame, whole};

const CONTEXT: [(&str, &str); 2] = [
    (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    ("tracestate", "vendor=1,other=2"),
];

type Seen = Arc<Mutex<Vec<HeaderMap>>>;

/// Serves a runtime that gives an empty answer to all calls; keeps the headers of those of `path`.
fn recording(socket: &Path, path: &'static str) -> Seen {
    let seen = Seen::default();
    let record = Arc::clone(&seen);
    let script = move |request: Request<Incoming>| {
        if request.uri().path() == path {
            let headers = request.headers().clone();
            // The proxy itself looks at its runtimes, too, in no trace.
            if headers.contains_key("x-test") {
                record.lock().unwrap().push(headers);
            }
        }
        None
    };
    raw::serve(socket, Arc::new(script));
    seen
}

fn run_request(handler: &str) -> Vec<u8> {
    v1::RunPodSandboxRequest {
        config: Some(sandbox_config("u-1")),
        runtime_handler: handler.to_owned(),
    }
    .encode_to_vec()
}

fn stop_request(tag: &str) -> Vec<u8> {
    let container_id = "ab".repeat(28) + tag;
    v1::StopContainerRequest {
        container_id,
        timeout: 7,
    }
    .encode_to_vec()
}

#[rstest]
#[case::forwarded("StopContainer", stop_request("00000000"), [1, 0])]
#[case::forwarded_to_the_secondary("StopContainer", stop_request(TAG), [0, 1])]
#[case::routed("RunPodSandbox", run_request(""), [1, 0])]
#[case::routed_to_the_secondary("RunPodSandbox", run_request("vmlet"), [0, 1])]
#[case::merged("ListContainers", Vec::new(), [1, 1])]
#[tokio::test]
async fn the_context_of_a_client_arrives_unchanged(
    #[case] method: &str,
    #[case] message: Vec<u8>,
    #[case] expected: [usize; 2],
) {
    let path: &'static str = format!("/runtime.v1.RuntimeService/{method}").leak();
    let mut env = TestEnvironment::new();
    env.primary.kill();
    env.secondary.kill();
    let seen = [&env.primary, &env.secondary].map(|fake| recording(&fake.socket, path));
    env.start_proxy().await;
    let mut client = raw::connect(&env.config.listen).await;
    let mut request = call(path, body(&[frame(&message)], None));
    for (name, value) in CONTEXT.into_iter().chain([("x-test", "1")]) {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    whole(client.send_request(request).await.unwrap()).await;
    let seen = seen.map(|seen| seen.lock().unwrap().clone());
    assert_eq!(seen.each_ref().map(Vec::len), expected, "{seen:?}");
    for headers in seen.iter().flatten() {
        for (name, value) in CONTEXT {
            let all: Vec<_> = headers.get_all(name).iter().collect();
            assert_eq!(all, [value], "{headers:?}");
        }
    }
}
