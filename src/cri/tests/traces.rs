//! What a collector of traces gets of requests.
//!
//! Invariant: server, client and collector share one thread, to which the traces belong.
//! Failure: the spans that arrived are shown.

use cri_proto::v1::image_service_client::ImageServiceClient;
use otel::BATCH;
use otel::collector::{Collector, Traced, named};
use tonic::metadata::MetadataMap;
use tracing::Instrument;

use super::methods::alone_in;
use super::*;
use crate::streaming::Streaming;
use crate::testkit::Node;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

fn traced(collector: Collector) -> Traced {
    Traced::to(collector, TARGET, 0)
}

fn calls(traced: &Traced) -> Calls {
    Calls::new(Arc::default(), Some(Arc::clone(&traced.requests)))
}

/// A server of `FakeRuntime` whose requests are traced.
async fn server(traced: &Traced) -> Server {
    let simple = FakeRuntime::default();
    let stopping = Arc::clone(&simple.stopping);
    Server {
        stopping,
        ..Server::observed(simple, NoImages, DEADLINE, calls(traced)).await
    }
}

/// A request of a client whose span is sampled or not.
fn from_trace<T>(message: T, is_sampled: bool) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("{PARENT}-0{}", u8::from(is_sampled));
    let metadata: &mut MetadataMap = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().unwrap());
    request
}

#[tokio::test]
async fn a_request_of_kubelet_and_its_steps_are_in_the_trace_of_kubelet() {
    let traced = traced(Collector::start().await);
    let state = tempfile::tempdir().unwrap();
    let config = alone_in(state.path());
    let app = App::start(&config).await.unwrap();
    let streaming = Streaming::bind(config.streaming.listen, None).await;
    let runtime = runtime::Runtime::new(app.clone(), &config, streaming.unwrap().gate());
    let images = image::Images::new(app);
    let server = Server::observed(runtime, images, DEADLINE, calls(&traced)).await;
    let message = v1::PullImageRequest {
        image: Some(v1::ImageSpec {
            image: "127.0.0.1/disk:latest".to_owned(),
            ..v1::ImageSpec::default()
        }),
        ..v1::PullImageRequest::default()
    };
    let mut client = ImageServiceClient::new(connect(&server.path).await);
    let ended = client.pull_image(from_trace(message, true)).await;
    let status = ended.unwrap_err();
    drop(client);
    server.stop().await;
    let spans = traced.spans().await;
    let call = named(&spans, "runtime.v1.ImageService/PullImage");
    assert_eq!(call.parent(), PARENT);
    assert_eq!(call.text("rpc.method"), Some("PullImage"));
    assert_eq!(call.text("image"), Some("127.0.0.1/disk:latest"));
    let code = call.number("rpc.grpc.status_code");
    assert_eq!(code, Some(i32::from(status.code()).into()), "{status:?}");
    let step = named(&spans, "image.pull");
    assert_eq!(step.span.trace_id, call.span.trace_id);
    assert_eq!(step.span.parent_span_id, call.span.span_id);
    let failure = step.span.status.as_ref().unwrap();
    assert!(!failure.message.is_empty(), "{step:?}");
}

#[tokio::test]
async fn a_request_whose_client_is_not_sampled_has_no_span() {
    let traced = traced(Collector::start().await);
    let server = server(&traced).await;
    let mut client = server.client().await;
    let version = v1::VersionRequest::default;
    client.version(from_trace(version(), false)).await.unwrap();
    client.version(version()).await.unwrap();
    client.version(from_trace(version(), true)).await.unwrap();
    drop(client);
    server.stop().await;
    let spans = traced.spans().await;
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(spans[0].parent(), PARENT);
    assert_eq!(spans[0].number("rpc.grpc.status_code"), Some(0));
}

#[tokio::test]
async fn a_request_whose_client_disconnects_ends_as_cancelled() {
    let traced = traced(Collector::start().await);
    let server = server(&traced).await;
    let mut client = server.client().await;
    let stuck = tokio::spawn(async move {
        let request = v1::StopContainerRequest::default();
        client.stop_container(from_trace(request, true)).await
    });
    drop(server.stopping.acquire().await.unwrap());
    stuck.abort();
    assert!(stuck.await.unwrap_err().is_cancelled());
    server.stop().await;
    let spans = traced.spans().await;
    let call = named(&spans, "runtime.v1.RuntimeService/StopContainer");
    let code = i64::from(i32::from(Code::Cancelled));
    assert_eq!(call.number("rpc.grpc.status_code"), Some(code));
}

#[tokio::test]
async fn requests_do_not_wait_for_a_collector_that_does_not_answer() {
    let traced = traced(Collector::held().await);
    let server = server(&traced).await;
    let mut client = server.client().await;
    let requests = async {
        for number in 0..2 * BATCH {
            if number == BATCH {
                // The export has arrived, and never gets an answer.
                traced.collector.exports(1).await;
            }
            let request = from_trace(v1::VersionRequest::default(), true);
            client.version(request).await.unwrap();
        }
    };
    tokio::time::timeout(DEADLINE, requests).await.unwrap();
    drop(client);
    server.stop().await;
    traced.stop(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn each_costly_step_of_a_machine_has_a_span_below_its_request() {
    let traced = traced(Collector::start().await);
    let node = Node::new().await;
    let call = tracing::info_span!(target: TARGET, "call");
    let headers = from_trace((), true).metadata().clone().into_headers();
    traced.requests.begin(&call, "/of/Everything", &headers);
    let work = async {
        node.images.pull(&node.image("disk")).await.unwrap();
        let id = node.started().await;
        let stopped = node.containers.stop(&id, Duration::ZERO).await;
        stopped.unwrap();
        let sandbox = node.row(&id).sandbox.clone();
        node.sandboxes.stop(&sandbox).await.unwrap();
        id
    };
    let id = work.instrument(call.clone()).await;
    drop(call);
    let spans = traced.spans().await;
    let call = &named(&spans, "of/Everything").span;
    for (step, has_container) in [
        ("image.pull", false),
        ("network.setup", false),
        ("disk.prepare", true),
        ("libvirt.define", true),
        ("libvirt.start", true),
        ("machine.stop", true),
        ("network.teardown", false),
    ] {
        let arrived = named(&spans, step);
        assert_eq!(arrived.span.trace_id, call.trace_id, "{step}");
        assert_eq!(arrived.span.parent_span_id, call.span_id, "{step}");
        let container = has_container.then_some(id.as_str());
        assert_eq!(arrived.text("container"), container, "{step}");
    }
}
