//! OpenTelemetry traces of a gRPC server.
//!
//! [`start`] returns what receives the spans of a process, what joins requests to the traces of
//! their clients, and the exporter, which the process stops at its end.
//!
//! Invariant: no request waits for the collector. Spans go to a queue with an end, and two threads
//! of this crate send them; spans beyond the queue are lost.
//! Failure: [`Error`] when the threads cannot be had. The log has a line when spans are lost, at
//! most one in ten minutes.

#[cfg(feature = "collector")]
pub mod collector;
mod finish;
mod losses;
mod requests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider,
};
use service::telemetry::{RequestTraces, STEPS, TraceLayer};
use tokio::runtime::Runtime;
use tracing::{Level, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};

use finish::Finishing;
use requests::Requests;

/// Spans that wait for their export; further ones are lost.
pub const QUEUE: usize = 2048;
/// Spans of one export.
pub const BATCH: usize = 512;
/// Longest wait of a span for its export.
const DELAY: Duration = Duration::from_secs(5);
/// Longest wait for the collector, for a connection and for the answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// What to trace, and where to send it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the program.
    pub service: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Target of the spans of requests.
    pub requests: &'static str,
    /// URL of the collector, which takes OTLP over gRPC.
    pub endpoint: String,
    /// How many of a million requests without a parent are traced.
    pub sampling_rate_per_million: u32,
}

/// Why there can be no traces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No threads.
    #[error("start the runtime of the exporter")]
    Runtime(#[source] std::io::Error),
    /// The address of the collector is no URL.
    #[error("read the address of the collector")]
    Endpoint(#[source] tonic::transport::Error),
    /// The exporter cannot be made.
    #[error("make the exporter")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
}

/// Traces of a process.
pub struct Traces {
    /// For the subscriber of the process.
    pub layer: TraceLayer,
    /// For its server.
    pub requests: Arc<dyn RequestTraces>,
    /// For its end.
    pub exporter: Exporter,
}

/// Sends spans to the collector.
#[derive(Debug)]
pub struct Exporter {
    provider: SdkTracerProvider,
    runtime: Runtime,
}

/// Starts the exporter. It connects with its first spans.
///
/// # Errors
/// No threads, or an address that is no URL.
pub fn start(settings: &Settings) -> Result<Traces, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("traces")
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let exporter = {
        let _inside = runtime.enter();
        exporter(settings)?
    };
    let limits = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(DELAY)
        .build();
    let processor = BatchSpanProcessor::builder(Finishing::new(exporter))
        .with_batch_config(limits)
        .build();
    let rate = f64::from(settings.sampling_rate_per_million) / 1_000_000.0;
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
            rate,
        ))))
        .with_resource(resource(settings))
        .build();
    let spans = Targets::new()
        .with_target(STEPS, Level::INFO)
        .with_target(settings.requests, Level::INFO);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(settings.service))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(spans.and(filter_fn(|it: &Metadata<'_>| it.is_span())));
    Ok(Traces {
        layer: Box::new(layer),
        requests: Arc::new(Requests::default()),
        exporter: Exporter { provider, runtime },
    })
}

fn exporter(settings: &Settings) -> Result<SpanExporter, Error> {
    let channel = tonic::transport::Endpoint::from_shared(settings.endpoint.clone())
        .map_err(Error::Endpoint)?
        .connect_timeout(EXPORT_TIMEOUT)
        .timeout(EXPORT_TIMEOUT)
        .connect_lazy();
    SpanExporter::builder()
        .with_tonic()
        .with_channel(channel)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(Error::Exporter)
}

/// Who the spans are from. `OTEL_RESOURCE_ATTRIBUTES` adds attributes.
fn resource(settings: &Settings) -> Resource {
    let host = nix::unistd::gethostname().ok();
    let host = host.and_then(|name| name.into_string().ok());
    let host = host.map(|name| KeyValue::new("host.name", name));
    Resource::builder()
        .with_service_name(settings.service)
        .with_attribute(KeyValue::new("service.version", settings.version))
        .with_attributes(host)
        .build()
}

impl Exporter {
    /// Sends what the queue has, for at most `within`. Blocks.
    pub fn stop(self, within: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(within) {
            tracing::warn!(%error, "last traces not exported");
        }
        self.runtime.shutdown_background();
    }
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traces")
            .field("requests", &self.requests)
            .field("exporter", &self.exporter)
            .finish_non_exhaustive()
    }
}
