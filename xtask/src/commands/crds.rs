//! `crds`: the manifests of our kinds, from their types.
//!
//! Invariant: xtask itself knows nothing of Kubernetes' types; an example of `libs/crds` writes the files.
//! Failure: the exit code of that program.

use std::process::ExitCode;

use anyhow::Result;

use crate::{run, workspace};

/// Writes `deploy/crds` from the types in `libs/crds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Crds;

impl Crds {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let folder = workspace::root().join("deploy/crds");
        let mut cargo = workspace::cargo();
        cargo.args(["run", "--quiet", "-p", "crds", "--example", "crds", "--"]);
        run::check(cargo.arg(&folder))?;
        println!("crds: {} is written", folder.display());
        Ok(ExitCode::SUCCESS)
    }
}
