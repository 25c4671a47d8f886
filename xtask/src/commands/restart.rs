//! `restart`: starts a program of a stack again, or replaces it.
//!
//! Invariant: when it returns, the program answers again.
//! Failure: the end of the program's log is in the error.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use nix::unistd::geteuid;

use crate::run;
use crate::stack::{self, Layout, Program};

/// Restarts a program of a stack, or starts it if it does not run.
#[derive(Debug, clap::Args)]
pub(crate) struct Restart {
    /// Directory of the stack.
    #[arg(long)]
    dir: PathBuf,
    /// Program to restart.
    program: Program,
}

impl Restart {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !geteuid().is_root() {
            let mut restart = run::myself_as_root()?;
            run::check(
                restart
                    .arg("restart")
                    .arg("--dir")
                    .arg(&self.dir)
                    .arg(self.program.name()),
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        stack::restart(&Layout::existing(&self.dir)?, self.program)?;
        println!("restart: {} answers", self.program);
        Ok(ExitCode::SUCCESS)
    }
}
