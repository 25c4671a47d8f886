//! `crds`: the manifests of our kinds, from their types.
//!
//! Invariant: xtask itself knows nothing of Kubernetes' types; an example of `libs/crds` writes the
//! files.
//! Failure: the exit code of that program.

use std::process::ExitCode;

use anyhow::Result;

use crate::{chart, run, workspace};

/// Writes `deploy/crds`, their copies in the Helm chart, and the fields in `docs/kinds`, from the types in
/// `libs/crds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Crds;

impl Crds {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut cargo = workspace::cargo();
        cargo.args(["run", "--quiet", "-p", "crds", "--example", "crds", "--"]);
        run::check(cargo.arg(workspace::root()))?;
        chart::write()?;
        println!(
            "crds: deploy/crds, its copies in deploy/chart and the ends of docs/kinds/*.md are written"
        );
        Ok(ExitCode::SUCCESS)
    }
}
