//! `bench controller`: the release build of the controller over many machines, against a real API
//! server.
//!
//! Invariant: the scenarios are those of the tests `api::priority`, which asserts their order;
//! numbers are only printed.
//! Failure: the exit code of the test.

use std::process::ExitCode;

use anyhow::Result;

use crate::commands::build::Build;
use crate::commands::{setup, tools};
use crate::{run, workspace};

/// The end-to-end tests that have the scenarios.
const TESTS: &str = "api::priority";

/// Measures the controller with many machines: first start, edit of a class, restart.
#[derive(Debug, clap::Args)]
pub(super) struct Controller {
    /// Number of machines.
    #[arg(long, default_value_t = 1000)]
    machines: u32,
}

impl Controller {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        let installed = setup::ensure(false)?;
        if installed != ExitCode::SUCCESS {
            return Ok(installed);
        }
        println!("bench: building");
        tools::ensure(tools::API)?;
        Build::RELEASE.programs()?;
        let mut test = run::command(run::myself()?);
        test.args(["test", TESTS]);
        let program = workspace::target().join("release/vmlet-controller");
        test.env("VMLET_E2E_CONTROLLER", program);
        test.env("VMLET_E2E_MACHINES", self.machines.to_string());
        Ok(if test.status()?.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
