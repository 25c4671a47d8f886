//! Commands and sessions that run.
//!
//! Invariant: each ends once; one that is dropped was given up.
//! Failure: none.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Labels {
    kind: &'static str,
    outcome: &'static str,
}

/// A command or a session in progress.
#[derive(Debug)]
pub struct Running {
    kind: &'static str,
    outcome: &'static str,
    open: Family<Kind, Gauge>,
    ended: Family<Labels, Counter>,
}

impl Running {
    pub(super) fn begin(
        kind: &'static str,
        open: Family<Kind, Gauge>,
        ended: Family<Labels, Counter>,
    ) -> Self {
        open.get_or_create(&Kind { kind }).inc();
        Self {
            kind,
            outcome: "abandoned",
            open,
            ended,
        }
    }

    /// It ended, well or not.
    pub(crate) fn end(mut self, well: bool) {
        self.outcome = if well { "ended" } else { "failed" };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let kind = self.kind;
        let outcome = self.outcome;
        self.open.get_or_create(&Kind { kind }).dec();
        self.ended.get_or_create(&Labels { kind, outcome }).inc();
    }
}
