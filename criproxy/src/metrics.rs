//! What the proxy counts: calls per runtime, method and code, their time, and the state of each
//! connection.
//!
//! Invariant: labels come from fixed tables and the configuration, never from requests.
//! Failure: none; a metric that is never read costs a few nanoseconds.

use std::sync::Arc;
use std::time::Instant;

use cri_proto::code_name;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

/// Upper bounds of the time histogram, in seconds.
const BOUNDS: [f64; 12] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    backend: Arc<str>,
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Target {
    backend: Arc<str>,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Peer {
    backend: Arc<str>,
}

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Outcome, Counter>,
    seconds: Family<Target, Histogram, fn() -> Histogram>,
    connected: Family<Peer, Gauge>,
    breaker: Family<Peer, Gauge>,
    stale: Family<Target, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("vmlet_criproxy"),
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            connected: Family::default(),
            breaker: Family::default(),
            stale: Family::default(),
        };
        let registry = &mut metrics.registry;
        let help = "Calls sent to a runtime, by the gRPC code of their end";
        registry.register("requests", help, metrics.requests.clone());
        let help = "Time until the end of a call in seconds";
        registry.register("request_seconds", help, metrics.seconds.clone());
        let help = "Whether there is a connection to the runtime";
        registry.register("connected", help, metrics.connected.clone());
        let help =
            "Whether calls to all runtimes leave this one out because it failed again and again";
        registry.register("breaker_open", help, metrics.breaker.clone());
        let help = "Answers given from memory because the runtime did not answer";
        registry.register("stale_answers", help, metrics.stale.clone());
        metrics
    }

    /// Starts the clock of a call.
    pub(crate) fn start(self: &Arc<Self>, backend: &Arc<str>, method: &'static str) -> Running {
        Running {
            metrics: Arc::clone(self),
            backend: Arc::clone(backend),
            method,
            started: Instant::now(),
            code: Code::Cancelled,
        }
    }

    pub(crate) fn connected(&self, backend: &Arc<str>, up: bool) {
        let backend = Arc::clone(backend);
        let gauge = self.connected.get_or_create_owned(&Peer { backend });
        gauge.set(i64::from(up));
    }

    pub(crate) fn breaker(&self, backend: &Arc<str>, open: bool) {
        let backend = Arc::clone(backend);
        let gauge = self.breaker.get_or_create_owned(&Peer { backend });
        gauge.set(i64::from(open));
    }

    pub(crate) fn stale(&self, backend: &Arc<str>, method: &'static str) {
        let backend = Arc::clone(backend);
        self.stale.get_or_create(&Target { backend, method }).inc();
    }

    /// All metrics in the text format of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Fails only when the writer does, and a string never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// A call in progress; one that is dropped was given up.
#[derive(Debug)]
pub(crate) struct Running {
    metrics: Arc<Metrics>,
    backend: Arc<str>,
    method: &'static str,
    started: Instant,
    code: Code,
}

impl Running {
    /// The call ended.
    pub(crate) fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let seconds = self.started.elapsed().as_secs_f64();
        let method = self.method;
        let target = Target {
            backend: Arc::clone(&self.backend),
            method,
        };
        let metrics = &self.metrics;
        metrics.seconds.get_or_create(&target).observe(seconds);
        let outcome = Outcome {
            backend: target.backend,
            method,
            code: code_name(self.code),
        };
        metrics.requests.get_or_create(&outcome).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_with_its_code_and_time() {
        let metrics = Arc::new(Metrics::new());
        let name = Arc::from("vmlet");
        metrics.start(&name, "Version").end(Code::NotFound);
        let text = metrics.text();
        let line =
            r#"vmlet_criproxy_requests_total{backend="vmlet",method="Version",code="NOT_FOUND"} 1"#;
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains("vmlet_criproxy_request_seconds_count"),
            "{text}"
        );
    }
}
