//! Processes that do nothing but use a processor, to see what tests do on a busy machine.
//!
//! Invariant: they end with the value that stands for them.
//! Failure: one that cannot be started is an error; one that cannot be killed ends with this program's session.

use std::process::Child;

use anyhow::{Context, Result};

use crate::run;

/// Busy processes.
#[derive(Debug, Default)]
pub(super) struct Load(Vec<Child>);

impl Load {
    /// Starts this many of them.
    pub(super) fn start(number: usize) -> Result<Self> {
        let mut load = Self::default();
        for _ in 0..number {
            let mut busy = run::command("sh");
            let child = busy.args(["-c", "while :; do :; done"]).spawn();
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
