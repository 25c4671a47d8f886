//! `down`: stops a node stack and reports what it left behind.
//!
//! Invariant: afterwards nothing of the stack is left, leaks or not.
//! Failure: exit code 1 with every leak by name.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use nix::unistd::geteuid;

use crate::run;
use crate::stack::{self, Layout, Logs};

/// Stops a node stack and removes it; on leaks, lists them and exits with code 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Down {
    /// Directory of the stack.
    #[arg(long)]
    dir: PathBuf,
    /// Keep DIR/log and DIR/logs.
    #[arg(long)]
    keep: bool,
}

impl Down {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !geteuid().is_root() {
            let mut down = run::myself_as_root()?;
            down.arg("down")
                .arg("--dir")
                .arg(&self.dir)
                .args(self.keep.then_some("--keep"));
            return Ok(if down.status()?.success() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        let logs = if self.keep { Logs::Keep } else { Logs::Remove };
        Ok(if take_down(&self.dir, logs)? == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// The part that `demo` and `critest` share: returns the number of leaks, after naming them.
pub(crate) fn take_down(dir: &Path, logs: Logs) -> Result<usize> {
    let leaks = stack::take_down(&Layout::existing(dir)?, logs)?;
    if leaks.is_empty() {
        println!("down: stopped, nothing leaked");
    }
    for leak in &leaks {
        println!("down: leaked {leak}");
    }
    Ok(leaks.len())
}
