//! The minor versions of Kubernetes whose programs the tests can build.
//!
//! Invariant: each has a Go module in `tests/tools`, which pins its patch version, and a folder of
//! programs that no other version has. The programs of the newest are beside all other tools.
//! Failure: none.

use std::path::PathBuf;

use crate::workspace;

/// A minor version of Kubernetes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Minor {
    /// The version of all clusters but those that name another one.
    #[default]
    #[value(name = "1.37")]
    Newest,
    /// The version before it.
    #[value(name = "1.36")]
    V1_36,
    /// The oldest.
    #[value(name = "1.35")]
    V1_35,
}

impl Minor {
    /// The folder of its Go module below `tests/tools`.
    pub(super) const fn module(self) -> &'static str {
        match self {
            Self::Newest => "kubernetes",
            Self::V1_36 => "kubernetes-1.36",
            Self::V1_35 => "kubernetes-1.35",
        }
    }

    /// The folder of its stamps, with the programs in `bin`.
    pub(super) fn folder(self) -> PathBuf {
        let tools = workspace::tools();
        match self {
            Self::Newest => tools,
            Self::V1_36 | Self::V1_35 => tools.join(self.module()),
        }
    }
}
