//! `manifest`: writes the list of all tests, with which a whole run of the suite is compared.
//!
//! Invariant: the list has what the built programs name as their tests.
//! Failure: what cannot be built is not listed; the file stays as it is.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{suite, workspace};

/// Builds all tests and writes their list, tests/manifest.tsv.
#[derive(Debug, clap::Args)]
pub(crate) struct Manifest;

impl Manifest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let file = workspace::root().join(suite::MANIFEST);
        let list = suite::list()?;
        fs::write(&file, list).with_context(|| format!("write {}", file.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
