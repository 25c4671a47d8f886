//! `e2e`: the tests with whole Kubernetes clusters.
//!
//! Invariant: everything they need is built first, which costs nothing when it is there.
//! Failure: the exit code of `cargo test`.

use std::process::ExitCode;

use anyhow::Result;

use super::tools::{self, Tool};
use super::up::{self, Build};
use super::{guest, run_test, setup};

/// Runs the tests that need a Kubernetes cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct E2e {
    /// Only the tests of this file, or those with this in their name.
    name: Option<String>,
}

impl E2e {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let installed = setup::ensure(false)?;
        if installed != ExitCode::SUCCESS {
            return Ok(installed);
        }
        prepare()?;
        let status = run_test::cargo_cluster(self.name.as_deref())?.status()?;
        Ok(if status.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// Tools, images and our own programs.
pub(crate) fn prepare() -> Result<()> {
    up::prepare_cluster()?;
    tools::ensure(&[Tool::Critest])?;
    guest::ensure()?;
    Build::DEVELOPMENT.programs().map(drop)
}
