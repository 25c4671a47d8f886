//! What the controller counts.
//!
//! Invariant: names are in this file and its children; labels come from fixed tables, except for names of
//! machines and nodes, whose series end with them.
//! Failure: none; a metric that nobody reads costs a few nanoseconds.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Events that were not written.
    pub events_lost: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("vmlet"),
            events_lost: Counter::default(),
        };
        let registry = &mut metrics.registry;
        let help = "Kubernetes events that were lost";
        registry.register("events_lost", help, metrics.events_lost.clone());
        metrics
    }
}

impl Metrics {
    /// All metrics in the text format of OpenMetrics.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Fails only when the writer does, and a string never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
