//! The seam between the spans of a program and OpenTelemetry, which not every build has.
//!
//! Invariant: nothing here depends on OpenTelemetry. Spans with the target [`STEPS`] are not part of
//! log lines.
//! Failure: none.

use std::fmt::Debug;

use http::HeaderMap;
use tracing::Span;
use tracing_subscriber::{Layer, Registry};

/// Target of spans that only traces have: the steps of a request.
pub const STEPS: &str = "steps";

/// What receives the spans of a process besides its log.
pub type TraceLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Makes the spans of gRPC requests parts of the traces of their clients.
pub trait RequestTraces: Debug + Send + Sync {
    /// The request has arrived: `span` becomes a child of the span that its headers name. Called
    /// before the span is entered.
    fn begin(&self, span: &Span, path: &str, headers: &HeaderMap);

    /// The request has ended with this gRPC code; `message` is empty if it succeeded.
    fn end(&self, span: &Span, code: i32, message: &str);
}
