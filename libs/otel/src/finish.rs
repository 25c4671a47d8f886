//! The last touch to spans before their export, and the report of spans that are lost.
//!
//! The log has the same spans as traces. What only OpenTelemetry has of a request, its kind and the
//! form of its name, is therefore no field of a span: each line of the log would have it.
//!
//! Invariant: an export that fails ends here; the spans are not sent again.
//! Failure: a line in the log, see [`crate::losses`].

use std::sync::Mutex;
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use crate::losses::{Losses, Report};
use crate::requests::{METHOD, SERVICE, SYSTEM};

/// An exporter behind this module.
#[derive(Debug)]
pub(crate) struct Finishing<E> {
    inner: E,
    losses: Mutex<Losses>,
}

impl<E> Finishing<E> {
    pub(crate) fn new(inner: E) -> Self {
        let losses = Mutex::default();
        Self { inner, losses }
    }

    fn report(&self, count: usize, ended: &OTelSdkResult) {
        let mut losses = match self.losses.lock() {
            Ok(losses) => losses,
            Err(poisoned) => poisoned.into_inner(),
        };
        let error = ended.as_ref().err();
        match losses.exported(count, error.is_none(), Instant::now()) {
            None => {}
            Some(Report::Lost) => {
                let error = error.map(ToString::to_string).unwrap_or_default();
                tracing::warn!(error, "traces not exported: spans are lost");
            }
            Some(Report::Resumed { lost }) => tracing::info!(lost, "traces exported again"),
        }
    }
}

impl<E: SpanExporter> SpanExporter for Finishing<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        batch.iter_mut().for_each(finish);
        let ended = self.inner.export(batch).await;
        self.report(count, &ended);
        ended
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.inner.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// A request is a span of a server, with the full name of its method.
fn finish(span: &mut SpanData) {
    let find = |key: &str| {
        let mut all = span.attributes.iter();
        all.find(|attribute| attribute.key.as_str() == key)
            .map(|attribute| attribute.value.as_str())
    };
    if find(SYSTEM).is_none() {
        return;
    }
    let service = find(SERVICE);
    let method = find(METHOD);
    let name = format!(
        "{}/{}",
        service.unwrap_or_default(),
        method.unwrap_or_default()
    );
    span.name = name.into();
    span.span_kind = SpanKind::Server;
}
