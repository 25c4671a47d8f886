//! Requests of gRPC clients as parts of the traces of these clients.
//!
//! Invariant: a header that is not W3C Trace Context, or absent, makes a trace of its own.
//! Failure: none; a span that no trace has stays without these attributes.

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::Status;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use service::telemetry::RequestTraces;
use tonic::Code;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Attributes of the spans of requests, from which [`crate::finish`] makes name and kind.
pub(crate) const SYSTEM: &str = "rpc.system";
pub(crate) const SERVICE: &str = "rpc.service";
pub(crate) const METHOD: &str = "rpc.method";
const STATUS: &str = "rpc.grpc.status_code";

/// Longest name of a service or a method; the path may be anything.
const LONGEST: usize = 100;

/// Reads and writes W3C Trace Context.
#[derive(Debug, Default)]
pub(crate) struct Requests(TraceContextPropagator);

struct Headers<'a>(&'a HeaderMap);

impl RequestTraces for Requests {
    fn begin(&self, span: &Span, path: &str, headers: &HeaderMap) {
        // Fails for a span that the filter of traces leaves out: there is nothing to join.
        let _ = span.set_parent(self.0.extract(&Headers(headers)));
        let (service, method) = names(path);
        span.set_attribute(SYSTEM, "grpc");
        span.set_attribute(SERVICE, service);
        span.set_attribute(METHOD, method);
    }

    fn end(&self, span: &Span, code: i32, message: &str) {
        span.set_attribute(STATUS, i64::from(code));
        if is_fault(Code::from_i32(code)) {
            span.set_status(Status::error(message.to_owned()));
        }
    }
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// Service and method of `/runtime.v1.RuntimeService/Version`.
fn names(path: &str) -> (String, String) {
    let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
    let clean = |text: &str| {
        let clean = text
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "._".contains(*c));
        clean.take(LONGEST).collect()
    };
    (clean(service), clean(method))
}

/// Codes that the server is to blame for, as the conventions of OpenTelemetry list them.
const fn is_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "/runtime.v1.RuntimeService/Version",
        "runtime.v1.RuntimeService",
        "Version"
    )]
    #[case("/", "", "")]
    #[case("a b\n", "", "ab")]
    fn names_are_safe_to_show(#[case] path: &str, #[case] service: &str, #[case] method: &str) {
        assert_eq!(names(path), (service.to_owned(), method.to_owned()));
        assert!(names(&"x".repeat(1000)).1.len() <= LONGEST);
    }

    #[rstest]
    #[case(Code::Internal, true)]
    #[case(Code::NotFound, false)]
    #[case(Code::Cancelled, false)]
    fn only_faults_of_the_server_are_errors(#[case] code: Code, #[case] fault: bool) {
        assert_eq!(is_fault(code), fault);
    }
}
