//! `reboot`: cuts the power of a cluster's node and boots it again.
//!
//! Invariant: when it returns, the node's programs answer; pods return by kubelet's own logic.
//! Failure: the end of the log of the program that does not answer is in the error.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use nix::unistd::geteuid;

use crate::run;
use crate::stack::{self, Layout};

/// Simulates a power failure on a cluster node; files are kept, everything else is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Reboot {
    /// Directory of the node.
    #[arg(long)]
    dir: PathBuf,
}

impl Reboot {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !geteuid().is_root() {
            let mut reboot = run::myself_as_root()?;
            run::check(reboot.arg("reboot").arg("--dir").arg(&self.dir))?;
            return Ok(ExitCode::SUCCESS);
        }
        stack::reboot(&Layout::existing(&self.dir)?)?;
        println!("reboot: all programs answer");
        Ok(ExitCode::SUCCESS)
    }
}
