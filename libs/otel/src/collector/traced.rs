//! Traces of one thread, and the collector that gets them.
//!
//! Invariant: a test has all that it traces on its own thread.
//! Failure: waits have a deadline and panic after it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use service::telemetry::RequestTraces;
use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::{Arrived, Collector, DEADLINE};
use crate::{Exporter, Settings, start};

/// With a single subscriber in the process, `tracing` lets the thread that is first at a span decide
/// for all whether the span exists; a thread of another test has no subscriber.
static SECOND: OnceLock<Dispatch> = OnceLock::new();

/// Traces of the thread that made it.
#[derive(Debug)]
pub struct Traced {
    /// Who gets them.
    pub collector: Collector,
    /// For servers of this thread.
    pub requests: Arc<dyn RequestTraces>,
    exporter: Exporter,
    subscriber: DefaultGuard,
}

impl Traced {
    /// Traces whose requests have spans with the target `requests`.
    ///
    /// # Panics
    /// When the exporter does not start.
    #[allow(clippy::expect_used)]
    pub fn to(
        collector: Collector,
        requests: &'static str,
        sampling_rate_per_million: u32,
    ) -> Self {
        SECOND.get_or_init(|| Dispatch::new(NoSubscriber::new()));
        let traces = start(&Settings {
            service: "vmlet",
            version: "1.2.3",
            requests,
            endpoint: collector.endpoint(),
            sampling_rate_per_million,
        });
        let traces = traces.expect("an exporter");
        let subscriber = tracing_subscriber::registry().with(traces.layer);
        Self {
            collector,
            requests: traces.requests,
            exporter: traces.exporter,
            subscriber: subscriber.set_default(),
        }
    }

    /// All spans, once they have arrived.
    pub async fn spans(self) -> Vec<Arrived> {
        self.stop(DEADLINE).await
    }

    /// The spans that have arrived when the exporter had so much time to end.
    ///
    /// # Panics
    /// When it does not end.
    #[allow(clippy::expect_used)]
    pub async fn stop(self, within: Duration) -> Vec<Arrived> {
        drop(self.subscriber);
        let exporter = self.exporter;
        let ended = tokio::task::spawn_blocking(move || exporter.stop(within));
        ended.await.expect("the end of the exporter");
        self.collector.spans()
    }
}
