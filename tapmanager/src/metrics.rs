//! What the tapmanager counts: requests, calls of CNI plugins, hand-offs, sandboxes, answers to
//! guests.
//!
//! Invariant: labels come from fixed tables and from the node's own CNI configuration, never from
//! requests. `docs/observability.md` lists all names.
//! Failure: none; a metric that is never read costs a few nanoseconds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use service::admin_http::{Endpoint, Error, MetricsServer};
use tapmanager::wire::{ErrorCode, Reply, Request};
use tokio_util::sync::CancellationToken;

/// Upper bounds of times, in seconds.
const BOUNDS: [f64; 12] = [
    0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    kind: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    plugin: String,
    command: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOutcome {
    plugin: String,
    command: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IpFamily {
    family: &'static str,
}

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Outcome, Counter>,
    request_seconds: Histograms<Kind>,
    handoffs: Family<Code, Counter>,
    refusals: Family<Socket, Counter>,
    calls: Family<CallOutcome, Counter>,
    call_seconds: Histograms<Call>,
    sandboxes: Gauge,
    answers: Family<IpFamily, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Socket {
    socket: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(BOUNDS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("vmlet_tapmanager"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(histogram),
            handoffs: Family::default(),
            refusals: Family::default(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(histogram),
            sandboxes: Gauge::default(),
            answers: Family::default(),
        };
        let registry = &mut metrics.registry;
        let help = "Requests of the daemon, by kind and code";
        registry.register("requests", help, metrics.requests.clone());
        let help = "Time of a request in seconds";
        registry.register("request_seconds", help, metrics.request_seconds.clone());
        let help = "Requests for tap devices, by code";
        registry.register("handoffs", help, metrics.handoffs.clone());
        let help = "Connections of users that may not use the socket";
        registry.register("connections_refused", help, metrics.refusals.clone());
        let help = "Calls of CNI plugins, by their end";
        registry.register("cni_calls", help, metrics.calls.clone());
        let help = "Time of a call of a CNI plugin in seconds";
        registry.register("cni_call_seconds", help, metrics.call_seconds.clone());
        let help = "Sandboxes with a network or a part of one";
        registry.register("sandboxes", help, metrics.sandboxes.clone());
        let help = "Answers to guests that asked for their addresses";
        registry.register("dhcp_answers", help, metrics.answers.clone());
        metrics
    }
}

impl Metrics {
    /// A request was answered.
    pub(crate) fn requested(&self, kind: &'static str, begun: Instant, reply: &Reply) {
        let code = match reply {
            Reply::Ok(_) => "ok",
            Reply::Error(error) => code_name(error.code),
        };
        self.requests.get_or_create(&Outcome { kind, code }).inc();
        let seconds = self.request_seconds.get_or_create(&Kind { kind });
        seconds.observe(begun.elapsed().as_secs_f64());
    }

    /// A request for tap devices was answered; `None` without an error.
    pub(crate) fn handed_off(&self, error: Option<ErrorCode>) {
        let code = error.map_or("ok", code_name);
        self.handoffs.get_or_create(&Code { code }).inc();
    }

    /// A connection was refused because of its user.
    pub(crate) fn refused(&self, socket: &'static str) {
        self.refusals.get_or_create(&Socket { socket }).inc();
    }

    /// All metrics in the text format of OpenMetrics.
    pub(crate) fn text(&self, sandboxes: usize) -> String {
        self.sandboxes
            .set(i64::try_from(sandboxes).unwrap_or(i64::MAX));
        let answers = netns::answers();
        for (family, count) in [("ipv4", answers.dhcp4), ("ipv6", answers.dhcp6)] {
            let counter = self.answers.get_or_create(&IpFamily { family });
            counter.inner().store(count, Ordering::Relaxed);
        }
        let mut text = String::new();
        // Fails only when the writer does, and a string never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl cni::Observer for Metrics {
    fn called(&self, plugin: &str, command: &'static str, took: Duration, succeeded: bool) {
        let outcome = if succeeded { "ok" } else { "failed" };
        let plugin = plugin.to_owned();
        let labels = CallOutcome {
            plugin: plugin.clone(),
            command,
            outcome,
        };
        self.calls.get_or_create(&labels).inc();
        let seconds = self.call_seconds.get_or_create(&Call { plugin, command });
        seconds.observe(took.as_secs_f64());
    }
}

/// The word of a request for metrics.
pub(crate) const fn kind(request: &Request) -> &'static str {
    match request {
        Request::Hello { .. } => "hello",
        Request::Add(_) => "add",
        Request::Get { .. } => "get",
        Request::Check { .. } => "check",
        Request::Del { .. } => "del",
        Request::List {} => "list",
        Request::Gc { .. } => "gc",
        Request::Status {} => "status",
        Request::Counters { .. } => "counters",
        Request::Routes { .. } => "routes",
        Request::PrepareStart(_) => "prepare_start",
    }
}

const fn code_name(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Invalid => "invalid",
        ErrorCode::Version => "version",
        ErrorCode::NotFound => "not_found",
        ErrorCode::NotReady => "not_ready",
        ErrorCode::Plugin => "plugin",
        ErrorCode::Timeout => "timeout",
        ErrorCode::System => "system",
    }
}

/// Metrics that the parts of the program share.
pub(crate) type Shared = Arc<Metrics>;

/// Binds `endpoint` and gives the future that serves `/metrics` until `stop`. `sandboxes` counts
/// them.
pub(crate) async fn serve(
    endpoint: &Endpoint,
    metrics: Shared,
    sandboxes: impl Fn() -> usize + Send + Sync + 'static,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = MetricsServer::listen(endpoint).await?;
    tracing::info!(address = server.address, "metrics server started");
    Ok(server.serve(stop, move || metrics.text(sandboxes())))
}

#[cfg(test)]
mod tests;
