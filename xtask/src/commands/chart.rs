//! `chart`: the copies of manifests in the Helm chart.
//!
//! Invariant: the manifests of `deploy/` are the source; `crds` ends with this, too.
//! Failure: names the file.

use std::process::ExitCode;

use anyhow::Result;

use crate::chart;

/// Copies the manifests of `deploy` into the Helm chart `deploy/chart`.
#[derive(Debug, clap::Args)]
pub(crate) struct Chart;

impl Chart {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        chart::write()?;
        println!(
            "chart: crds and files in {} are written",
            chart::folder().display()
        );
        Ok(ExitCode::SUCCESS)
    }
}
