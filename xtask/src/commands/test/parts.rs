//! The parts of the test suite: what each needs and runs.
//!
//! Invariant: parts are independent; each prepares what it needs, which costs nothing when it is there.
//! Failure: a tool that is missing or fails is the part's error.

use std::fmt;
use std::process::Command;

use anyhow::Result;

use super::{Count, cargo_test};
use crate::commands::tools::{self, Tool};
use crate::commands::up::Build;
use crate::commands::{critest, e2e, guest, run_test};
use crate::{run, workspace};

/// One part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// The source is formatted.
    Fmt,
    /// No warning of the compiler or of clippy.
    Clippy,
    /// Licences, sources and duplicates of dependencies.
    Deny,
    /// Tests that need nothing.
    Unit,
    /// Tests with real parts, as root.
    Integration,
    /// Real node stacks, driven by crictl and by our own client.
    E2e,
    /// Whole Kubernetes clusters.
    Cluster,
    /// The conformance suite.
    Critest,
}

impl Part {
    /// All of them, the quick ones first.
    pub(super) const ALL: [Self; 8] = [
        Self::Fmt,
        Self::Clippy,
        Self::Deny,
        Self::Unit,
        Self::Integration,
        Self::E2e,
        Self::Cluster,
        Self::Critest,
    ];

    /// Whether it needs distribution packages, be it only to build the daemon.
    pub(super) fn needs_packages(self) -> bool {
        !matches!(self, Self::Fmt | Self::Deny)
    }

    /// Runs it.
    pub(super) fn run(self) -> Result<Count> {
        match self {
            Self::Fmt => one(workspace::cargo().args(["fmt", "--all", "--check"])),
            Self::Clippy => one(workspace::cargo().args([
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])),
            Self::Deny => {
                tools::ensure(&[Tool::CargoDeny])?;
                let mut deny = run::command(workspace::tools_bin().join("cargo-deny"));
                deny.current_dir(workspace::root()).args([
                    "--workspace",
                    "check",
                    "--hide-inclusion-graph",
                ]);
                one(deny.args(["licenses", "bans", "sources"]))
            }
            Self::Unit => cargo_test::run(|names| {
                let mut cargo = workspace::cargo();
                cargo.args(["test", "--workspace", "--no-fail-fast"]);
                if !names.is_empty() {
                    cargo.args(["--", "--exact"]).args(names);
                }
                Ok(cargo)
            }),
            Self::Integration => {
                guest::ensure()?;
                Build::DEVELOPMENT.programs()?;
                cargo_test::run(|names| {
                    let mut cargo = run_test::cargo(run_test::Part::Integration, 2)?;
                    if !names.is_empty() {
                        cargo.arg("--exact").args(names);
                    }
                    Ok(cargo)
                })
            }
            Self::E2e => {
                tools::ensure(&[Tool::Crictl])?;
                guest::ensure()?;
                Build::DEVELOPMENT.programs()?;
                cargo_test::side_by_side(run_test::Part::E2e)
            }
            Self::Cluster => {
                e2e::prepare()?;
                cargo_test::side_by_side(run_test::Part::Cluster)
            }
            Self::Critest => {
                let tally = critest::suite(None)?;
                Ok(Count {
                    passed: tally.passed,
                    failed: tally.failed,
                    unsteady: 0,
                })
            }
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Deny => "deny",
            Self::Unit => "unit",
            Self::Integration => "integration",
            Self::E2e => "e2e",
            Self::Cluster => "cluster",
            Self::Critest => "critest",
        })
    }
}

/// A program whose exit code is the verdict.
fn one(command: &mut Command) -> Result<Count> {
    run::check(command)?;
    Ok(Count {
        passed: 1,
        ..Count::default()
    })
}
