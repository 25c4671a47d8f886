//! What the agent's socket serves.
//!
//! Invariant: the status, and nothing else.
//! Failure: the assertion shows the method and its answer.

use std::os::unix::fs::MetadataExt as _;

use cri_proto::v1;
use cri_proto::v1::runtime_service_client::RuntimeServiceClient;
use http_body_util::BodyExt as _;
use tonic::transport::{Channel, Endpoint};

use crate::environment::{TestEnvironment, eventually};
use crate::raw;

async fn connect(env: &TestEnvironment) -> RuntimeServiceClient<Channel> {
    let uri = format!("unix://{}", env.config.status_listen.display());
    let channel = Endpoint::try_from(uri).unwrap().connect().await.unwrap();
    RuntimeServiceClient::new(channel)
}

/// How often the primary was queried for its status since the last time.
fn queries(env: &TestEnvironment) -> usize {
    let calls = env.primary.calls();
    calls.iter().filter(|call| *call == "Status").count()
}

#[tokio::test]
async fn the_status_has_conditions_and_version_and_nothing_of_a_runtimes_configuration() {
    let (mut env, _cri) = TestEnvironment::start().await;
    let mut agent = connect(&env).await;
    let request = v1::StatusRequest { verbose: true };
    let status = agent.status(request).await.unwrap().into_inner();
    let version = (
        "vmlet-criproxy/version".to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    );
    assert_eq!(status.info, [version].into());
    let conditions = status.status.unwrap().conditions;
    let ready = |name: &str| {
        let mut all = conditions.iter();
        all.any(|condition| condition.r#type == name && condition.status)
    };
    assert!(
        ready("RuntimeReady") && ready("VmletRuntimeReady"),
        "{conditions:?}"
    );

    env.secondary.kill();
    eventually("the other runtime to be reported as away", async || {
        let answer = agent.status(request).await.unwrap().into_inner();
        let conditions = answer.status.unwrap().conditions;
        let mut all = conditions.iter();
        all.any(|condition| condition.r#type == "VmletRuntimeReady" && !condition.status)
    })
    .await;
}

#[tokio::test]
async fn every_other_call_is_refused_and_reaches_no_runtime() {
    let (env, _cri) = TestEnvironment::start().await;
    // What comes from here on is of this test.
    drop((env.primary.calls(), env.secondary.calls()));
    let mut client = raw::connect(&env.config.status_listen).await;
    let foreign = [
        "/runtime.v1.RuntimeService/Statuses",
        "/other.v1.Service/Status",
        "/",
    ];
    let all = cri_proto::METHODS.iter().map(|name| path(name));
    let mut refused = 0;
    for path in all.chain(foreign.map(str::to_owned)) {
        if path == "/runtime.v1.RuntimeService/Status" {
            continue;
        }
        let call = raw::call(&path, raw::body(&[raw::frame(b"")], None));
        let answer = client.send_request(call).await.unwrap();
        let code = answer.headers().get("grpc-status").cloned();
        answer.into_body().collect().await.unwrap();
        assert_eq!(code.unwrap(), "7", "{path} is not PERMISSION_DENIED");
        refused += 1;
    }
    assert_eq!(refused, cri_proto::METHODS.len() - 1 + foreign.len());
    // The proxy's own connections to the runtimes go on beside the test.
    let own = [
        "ListPodSandbox",
        "ListContainers",
        "ListImages",
        "RuntimeConfig",
        "Version",
    ];
    for runtime in [&env.primary, &env.secondary] {
        let calls = runtime.calls();
        let of_agent = calls.iter().find(|call| !own.contains(&call.as_str()));
        assert_eq!(of_agent, None);
    }
}

/// The path of a method of either service.
fn path(name: &str) -> String {
    let images = [
        "ListImages",
        "StreamImages",
        "ImageStatus",
        "PullImage",
        "RemoveImage",
        "ImageFsInfo",
    ];
    let service = if images.contains(&name) {
        "ImageService"
    } else {
        "RuntimeService"
    };
    format!("/runtime.v1.{service}/{name}")
}

#[tokio::test]
async fn many_requests_cost_the_runtimes_few() {
    let (env, _cri) = TestEnvironment::start().await;
    let agent = connect(&env).await;
    queries(&env);
    let started = std::time::Instant::now();
    let requests = (0..200).map(|_| {
        let mut agent = agent.clone();
        async move { agent.status(v1::StatusRequest::default()).await.unwrap() }
    });
    futures_util::future::join_all(requests).await;
    // One answer serves for a second.
    let most = 1 + usize::try_from(started.elapsed().as_secs()).unwrap();
    let made = queries(&env);
    assert!((1..=most).contains(&made), "{made} queries, at most {most}");
}

#[tokio::test]
async fn the_socket_is_alone_in_its_directory_and_the_agents() {
    let (env, _cri) = TestEnvironment::start().await;
    let socket = &env.config.status_listen;
    let found = std::fs::metadata(socket).unwrap();
    assert_eq!(
        (found.uid(), found.mode() & 0o777),
        (env.config.agent_uid, 0o600)
    );
    assert_eq!(
        std::fs::read_dir(socket.parent().unwrap()).unwrap().count(),
        1
    );
}

#[tokio::test]
async fn kubelet_is_served_without_the_agents_socket() {
    let mut env = TestEnvironment::new();
    env.config.status_listen = env.file.join("no/directory/status.sock");
    let mut cri = env.start_proxy().await;
    let version = cri.runtime.version(v1::VersionRequest::default()).await;
    assert_eq!(version.unwrap().into_inner().runtime_name, "containerd");
}
