//! The parts of the suite.
//!
//! Invariant: every test program belongs to exactly one part.
//! Failure: none.

use std::fmt;

use clap::ValueEnum as _;
use serde::{Serialize, Serializer};

/// One part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Part {
    /// Formatting of the source.
    Fmt,
    /// Warnings of the compiler and of clippy.
    Clippy,
    /// Documentation of the crates: its links, and its examples.
    Doc,
    /// Tests of one crate without external requirements.
    Unit,
    /// Tests of one crate with real components, as root.
    Integration,
    /// Node stacks, driven by crictl and by vmletctl.
    Stacks,
    /// API servers without nodes.
    Api,
    /// Complete Kubernetes clusters.
    Clusters,
    /// CRI conformance suite.
    Critest,
    /// Licences, sources and duplicates of dependencies.
    Deny,
    /// Alerts of Prometheus and queries of dashboards.
    Rules,
}

impl Part {
    /// All of them, in the order of the summary.
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The part of the end-to-end tests in the program of this name.
    pub(super) fn of_program(name: &str) -> Option<Self> {
        let parts = [Self::Stacks, Self::Api, Self::Clusters];
        parts.into_iter().find(|part| part.to_string() == name)
    }

    /// Whether its tests run whole stacks.
    pub(super) fn has_stacks(self) -> bool {
        matches!(
            self,
            Self::Stacks | Self::Api | Self::Clusters | Self::Critest
        )
    }

    /// Whether the test programs have to be built for it.
    pub(super) fn needs_programs(self) -> bool {
        !matches!(
            self,
            Self::Fmt | Self::Clippy | Self::Doc | Self::Deny | Self::Rules
        )
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        formatter.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
