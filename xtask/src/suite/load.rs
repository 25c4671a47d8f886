//! Processes that keep processors busy, to test on a busy host.
//!
//! Invariant: they end when their value is dropped, and also when this program is killed.
//! Failure: one that cannot be started is an error.

use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use crate::run;

/// Is busy as long as the process `$0` lives; `kill` is built into the shell.
const LOOP: &str = "while kill -0 $0; do :; done";

/// Busy processes.
#[derive(Debug, Default)]
pub(super) struct Load(Vec<Child>);

impl Load {
    /// Starts this many of them.
    pub(super) fn start(number: usize) -> Result<Self> {
        let mut load = Self::default();
        let own = std::process::id().to_string();
        for _ in 0..number {
            let mut busy = run::command("sh");
            let child = busy.args(["-c", LOOP, &own]).stderr(Stdio::null()).spawn();
            load.0.push(child.context("start a busy process")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It cannot have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
