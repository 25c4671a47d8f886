//! Metrics of the agent.
//!
//! Invariant: labels come from fixed tables: kinds and states of tasks, names of writes.
//! Failure: none.

use std::time::Duration;

use crds::{TaskState, VirtualMachineTaskStatus};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of a task's time, in seconds.
const BOUNDS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 7200.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Task {
    kind: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    what: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    outcome: &'static str,
}

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    live: Family<Task, Gauge>,
    ended: Family<Task, Counter>,
    seconds: Family<Kind, Histogram, fn() -> Histogram>,
    reconnects: Counter,
    writes: Family<Write, Counter>,
    sources: Family<Answer, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("vmlet_agent"),
            live: Family::default(),
            ended: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            reconnects: Counter::default(),
            writes: Family::default(),
            sources: Family::default(),
        };
        let registry = &mut metrics.registry;
        let help = "Tasks of this node that have not ended";
        registry.register("tasks", help, metrics.live.clone());
        let help = "Tasks whose end was recorded";
        registry.register("tasks_ended", help, metrics.ended.clone());
        let help = "Time from start to end of a task in seconds";
        registry.register("task_seconds", help, metrics.seconds.clone());
        let help = "Attempts to reach the daemon after it was away";
        registry.register("daemon_reconnects", help, metrics.reconnects.clone());
        let help = "Writes to the API server";
        registry.register("api_writes", help, metrics.writes.clone());
        let help = "ConfigMaps and Secrets that guest data come from, as the daemon was answered";
        registry.register("sources", help, metrics.sources.clone());
        metrics
    }

    /// The tasks that have not ended, all of them.
    pub(crate) fn live(&self, tasks: impl Iterator<Item = (String, Option<TaskState>)>) {
        self.live.clear();
        for (kind, state) in tasks {
            let state = state.map_or_else(|| "New".to_owned(), |state| format!("{state:?}"));
            self.live.get_or_create(&Task { kind, state }).inc();
        }
    }

    /// The end of a task was recorded.
    pub(crate) fn ended(&self, kind: &str, status: &VirtualMachineTaskStatus) {
        let kind = kind.to_owned();
        if let Some(start) = &status.start_time
            && let Some(end) = &status.completion_time
        {
            let took = Duration::try_from(end.0.duration_since(start.0)).unwrap_or_default();
            let seconds = self
                .seconds
                .get_or_create_owned(&Kind { kind: kind.clone() });
            seconds.observe(took.as_secs_f64());
        }
        let state = status.state.map_or_else(String::new, |s| format!("{s:?}"));
        self.ended.get_or_create(&Task { kind, state }).inc();
    }

    /// Another attempt to reach the daemon.
    pub(crate) fn reconnected(&self) {
        self.reconnects.inc();
    }

    /// Something was written, or was to be.
    pub(crate) fn wrote(&self, what: &'static str, well: bool) {
        let outcome = if well { "written" } else { "failed" };
        self.writes.get_or_create(&Write { what, outcome }).inc();
    }

    /// The daemon received the content of an object, or the reason why it is not available.
    pub(crate) fn source(&self, found: bool) {
        let outcome = if found { "read" } else { "refused" };
        self.sources.get_or_create(&Answer { outcome }).inc();
    }

    /// All metrics in the text format of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Fails only when the writer does, and a string never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted_by_kind_and_state() {
        let metrics = Metrics::new();
        let running = ("Save".to_owned(), Some(TaskState::Running));
        metrics.live([running.clone(), running].into_iter());
        metrics.ended(
            "Save",
            &VirtualMachineTaskStatus {
                state: Some(TaskState::Success),
                ..VirtualMachineTaskStatus::default()
            },
        );
        let text = metrics.text();
        for line in [
            r#"vmlet_agent_tasks{kind="Save",state="Running"} 2"#,
            r#"vmlet_agent_tasks_ended_total{kind="Save",state="Success"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
        metrics.live(std::iter::empty());
        assert!(!metrics.text().contains(r#"state="Running""#));
    }
}
