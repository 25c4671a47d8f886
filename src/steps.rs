//! Spans of the steps of a request that take long: what a trace shows below the request.
//!
//! Invariant: lines of the log do not have these spans, and without traces they do not exist.
//! Failure: that of the step, which its span shows, too.

use std::future::Future;

use tracing::{Instrument, Span};

/// A span for [`trace`]: its name, and its attributes as for `tracing::info_span!`.
macro_rules! step {
    ($name:literal $(, $($attributes:tt)+)?) => {
        tracing::info_span!(
            target: service::telemetry::STEPS,
            $name,
            otel.status_code = tracing::field::Empty,
            otel.status_description = tracing::field::Empty,
            $($($attributes)+)?
        )
    };
}

pub(crate) use step;

/// Does the work of a step in its span.
pub(crate) async fn trace<T, E: std::error::Error>(
    step: Span,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let ended = work.instrument(step.clone()).await;
    if let Err(error) = &ended
        && !step.is_disabled()
    {
        step.record("otel.status_code", "ERROR");
        step.record("otel.status_description", crate::one_line(error));
    }
    ended
}
