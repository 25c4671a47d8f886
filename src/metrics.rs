//! What the daemon counts: CRI requests, boots, pulls, calls to libvirt, commands and sessions; and
//! what it has: sandboxes, machines, tasks.
//!
//! Invariant: labels come from fixed tables, never from requests. `docs/observability.md` lists all
//! names; the controller has others.
//! Failure: none; a metric that is never read costs a few nanoseconds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

mod running;
mod server;

pub use running::Running;
pub(crate) use server::serve;

use running::{Kind, Labels};

/// Upper bounds of requests and calls, in seconds.
const BOUNDS: [f64; 12] = [
    0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0,
];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Phase {
    phase: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Table {
    table: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOutcome {
    call: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Task {
    kind: String,
    state: String,
}

/// Names of what there is at a scrape; each counts.
#[derive(Debug, Default)]
pub struct Census {
    /// The phase of each sandbox.
    pub sandboxes: Vec<String>,
    /// The phase of each container.
    pub machines: Vec<String>,
    /// Kind and state of each task that has not ended.
    pub tasks: Vec<(String, String)>,
    /// Whether there is a connection to libvirt.
    pub connected: bool,
    /// Rows of each table that cannot be read.
    pub unreadable: BTreeMap<&'static str, usize>,
    /// Version of the kernel's Landlock; 0: none.
    pub landlock: u32,
}

/// Files of image translations, by how they are used.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TranslationFiles {
    /// As they are.
    pub current: u32,
    /// Refused; what they had before is in use.
    pub outdated: u32,
    /// Refused; they have no rules.
    pub refused: u32,
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    request_seconds: Histograms<Method>,
    sandboxes: Family<Phase, Gauge>,
    machines: Family<Phase, Gauge>,
    boots: Family<Outcome, Counter>,
    boot_seconds: Histogram,
    shares_lost: Counter,
    pulls: Family<Outcome, Counter>,
    pull_bytes: Counter,
    collected: Family<Reason, Counter>,
    collected_bytes: Counter,
    translation_files: Family<State, Gauge>,
    connected: Gauge,
    landlock: Gauge,
    unreadable: Family<Table, Gauge>,
    calls: Family<CallOutcome, Counter>,
    call_seconds: Histograms<Call>,
    tasks: Family<Task, Gauge>,
    open: Family<Kind, Gauge>,
    ended: Family<Labels, Counter>,
}

fn histogram() -> Histogram {
    Histogram::new(BOUNDS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("vmlet"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(histogram),
            sandboxes: Family::default(),
            machines: Family::default(),
            boots: Family::default(),
            boot_seconds: histogram(),
            shares_lost: Counter::default(),
            pulls: Family::default(),
            pull_bytes: Counter::default(),
            collected: Family::default(),
            collected_bytes: Counter::default(),
            translation_files: Family::default(),
            connected: Gauge::default(),
            landlock: Gauge::default(),
            unreadable: Family::default(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(histogram),
            tasks: Family::default(),
            open: Family::default(),
            ended: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        let help = "CRI requests, by method and gRPC code";
        registry.register("cri_requests", help, self.requests.clone());
        let help = "Time of a CRI request in seconds";
        registry.register("cri_request_seconds", help, self.request_seconds.clone());
        let help = "Pod sandboxes, by phase";
        registry.register("sandboxes", help, self.sandboxes.clone());
        let help = "Machines, by phase";
        registry.register("machines", help, self.machines.clone());
        let help = "Starts of machines, by outcome";
        registry.register("boots", help, self.boots.clone());
        let help = "Time from the request until the emulator runs, in seconds";
        registry.register("boot_seconds", help, self.boot_seconds.clone());
        let help = "Shares that running guests lost with the process that served them";
        registry.register("shares_lost", help, self.shares_lost.clone());
        let help = "Pulls of images, by outcome";
        registry.register("pulls", help, self.pulls.clone());
        let help = "Bytes of images that were pulled";
        registry.register("pull_bytes", help, self.pull_bytes.clone());
        let help = "Images that the collection removed, by reason";
        registry.register("images_collected", help, self.collected.clone());
        let help = "Bytes of images that the collection removed";
        registry.register("image_collected_bytes", help, self.collected_bytes.clone());
        let help = "Files of image translations, by whether they are in use";
        let files = self.translation_files.clone();
        registry.register("image_translation_files", help, files);
        let help = "Whether there is a connection to libvirt";
        registry.register("libvirt_connected", help, self.connected.clone());
        let help = "Version of the kernel's Landlock, which confines emulators; 0 without it";
        registry.register("landlock_version", help, self.landlock.clone());
        let help = "Records that cannot be read and are left alone, by table";
        registry.register("unreadable_records", help, self.unreadable.clone());
        let help = "Calls to libvirt, by their end";
        registry.register("libvirt_calls", help, self.calls.clone());
        let help = "Time of a call to libvirt in seconds";
        registry.register("libvirt_call_seconds", help, self.call_seconds.clone());
        let help = "Tasks of the node API that have not ended";
        registry.register("node_tasks", help, self.tasks.clone());
        let help = "Commands in guests and streaming sessions that run";
        registry.register("sessions", help, self.open.clone());
        let help = "Commands in guests and streaming sessions that ended";
        registry.register("sessions_ended", help, self.ended.clone());
    }

    /// A CRI request ended; `method` and `code` are of fixed tables.
    pub(crate) fn requested(&self, method: &'static str, code: &'static str, took: Duration) {
        self.requests.get_or_create(&Request { method, code }).inc();
        let seconds = self.request_seconds.get_or_create(&Method { method });
        seconds.observe(took.as_secs_f64());
    }

    /// The start of a machine ended.
    pub(crate) fn booted(&self, since: Instant, well: bool) {
        let outcome = if well { "started" } else { "failed" };
        self.boots.get_or_create(&Outcome { outcome }).inc();
        if well {
            self.boot_seconds.observe(since.elapsed().as_secs_f64());
        }
    }

    /// A running guest lost a share.
    pub(crate) fn lost_share(&self) {
        self.shares_lost.inc();
    }

    /// A pull ended.
    pub(crate) fn pulled(&self, well: bool) {
        let outcome = if well { "pulled" } else { "failed" };
        self.pulls.get_or_create(&Outcome { outcome }).inc();
    }

    /// An image came into the store.
    pub(crate) fn received(&self, bytes: u64) {
        self.pull_bytes.inc_by(bytes);
    }

    /// The collection removed an image: `unused` or `space`.
    pub(crate) fn collected(&self, reason: &'static str, bytes: u64) {
        self.collected.get_or_create(&Reason { reason }).inc();
        self.collected_bytes.inc_by(bytes);
    }

    /// The files of image translations were read.
    pub(crate) fn translation_files(&self, files: TranslationFiles) {
        for (state, count) in [
            ("current", files.current),
            ("outdated", files.outdated),
            ("refused", files.refused),
        ] {
            let gauge = self.translation_files.get_or_create(&State { state });
            gauge.set(count.into());
        }
    }

    /// A command or a session begins: `command`, `exec`, `attach` or `portforward`.
    pub(crate) fn begin(&self, kind: &'static str) -> Running {
        Running::begin(kind, self.open.clone(), self.ended.clone())
    }

    /// All metrics in the text format of OpenMetrics.
    pub fn text(&self, census: &Census) -> String {
        for (family, phases) in [
            (&self.sandboxes, &census.sandboxes),
            (&self.machines, &census.machines),
        ] {
            family.clear();
            for phase in phases {
                let phase = phase.clone();
                family.get_or_create(&Phase { phase }).inc();
            }
        }
        self.tasks.clear();
        for (kind, state) in &census.tasks {
            let kind = kind.clone();
            let state = state.clone();
            self.tasks.get_or_create(&Task { kind, state }).inc();
        }
        self.connected.set(i64::from(census.connected));
        self.landlock.set(i64::from(census.landlock));
        for (table, count) in &census.unreadable {
            let gauge = self.unreadable.get_or_create(&Table { table });
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Fails only when the writer does, and a string never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl libvirt::Observer for Metrics {
    fn called(&self, call: &'static str, took: Duration, outcome: &'static str) {
        let labels = CallOutcome { call, outcome };
        self.calls.get_or_create(&labels).inc();
        let seconds = self.call_seconds.get_or_create(&Call { call });
        seconds.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
