//! Spans on their way to a collector.
//!
//! Invariant: each test has a subscriber and a collector of its own; nothing waits for time to pass.
//! Failure: the spans that arrived are shown.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use service::telemetry::STEPS;
use tracing::Span;

use super::{BATCH, QUEUE};
use crate::collector::{Collector, Traced, named};

const PATH: &str = "/runtime.v1.RuntimeService/StopContainer";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

fn traced(collector: Collector, rate: u32) -> Traced {
    Traced::to(collector, module_path!(), rate)
}

fn begin(traced: &Traced, headers: &[(&'static str, &str)]) -> Span {
    let span = tracing::info_span!("call", container = "c1");
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, value.parse().unwrap())
        })
        .collect();
    traced.requests.begin(&span, PATH, &headers);
    span
}

#[tokio::test]
async fn a_request_and_its_steps_join_the_trace_of_the_client() {
    let traced = traced(Collector::start().await, 0);
    let parent = format!("{PARENT}-01");
    let call = begin(
        &traced,
        &[("traceparent", &parent), ("tracestate", "vendor=1")],
    );
    call.in_scope(|| {
        drop(tracing::info_span!(target: STEPS, "machine.stop"));
        drop(tracing::info_span!(target: "elsewhere", "not ours"));
        tracing::info!("an event of the log");
    });
    traced.requests.end(&call, 13, "it failed");
    drop(call);
    let spans = traced.spans().await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    let arrived = named(&spans, &PATH[1..]);
    let span = &arrived.span;
    assert_eq!(arrived.parent(), PARENT);
    assert_eq!(span.trace_state, "vendor=1");
    assert_eq!(span.kind(), SpanKind::Server);
    assert_eq!(arrived.text("rpc.system"), Some("grpc"));
    assert_eq!(
        arrived.text("rpc.service"),
        Some("runtime.v1.RuntimeService")
    );
    assert_eq!(arrived.text("rpc.method"), Some("StopContainer"));
    assert_eq!(arrived.text("container"), Some("c1"));
    assert_eq!(arrived.number("rpc.grpc.status_code"), Some(13));
    let status = span.status.as_ref().unwrap();
    assert_eq!(
        (status.code(), &*status.message),
        (StatusCode::Error, "it failed")
    );
    assert!(span.events.is_empty(), "{span:?}");
    let step = &named(&spans, "machine.stop").span;
    assert_eq!(step.trace_id, span.trace_id);
    assert_eq!(step.parent_span_id, span.span_id);
    assert_eq!(step.kind(), SpanKind::Internal);
    let service = arrived.resource.attributes.iter();
    let service: Vec<_> = service.map(|attribute| attribute.key.as_str()).collect();
    for key in ["service.name", "service.version", "host.name"] {
        assert!(service.contains(&key), "{service:?}");
    }
}

#[tokio::test]
async fn the_client_decides_and_the_rate_counts_only_without_a_client_that_traces() {
    for (rate, parent, expected) in [
        (1_000_000, Some(format!("{PARENT}-00")), 0),
        (0, Some(format!("{PARENT}-01")), 1),
        (0, None, 0),
        (0, Some("00-nonsense".to_owned()), 0),
        (1_000_000, None, 1),
    ] {
        let traced = traced(Collector::start().await, rate);
        let headers = parent.as_deref().map(|parent| ("traceparent", parent));
        drop(begin(&traced, headers.as_slice()));
        let spans = traced.spans().await;
        assert_eq!(spans.len(), expected, "{rate} {parent:?}");
    }
}

#[tokio::test]
async fn spans_beyond_the_queue_are_lost_while_the_collector_does_not_answer() {
    let traced = traced(Collector::held().await, 1_000_000);
    for _ in 0..BATCH {
        drop(begin(&traced, &[]));
    }
    traced.collector.exports(1).await;
    // The first export has no answer: all that end now go to the queue, or nowhere.
    for _ in 0..2 * QUEUE {
        drop(begin(&traced, &[]));
    }
    traced.collector.release();
    let arrived = traced.spans().await.len();
    assert!(
        (BATCH..BATCH + 2 * QUEUE).contains(&arrived),
        "{arrived} spans"
    );
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_collector_that_does_not_answer() {
    let traced = traced(Collector::held().await, 1_000_000);
    drop(begin(&traced, &[]));
    let arrived = traced.stop(Duration::from_millis(1)).await.len();
    assert!(arrived <= 1, "{arrived} spans");
}
