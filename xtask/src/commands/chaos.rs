//! `chaos`: programs are killed, desired states change, snapshots and backups are taken and returned to at random, on
//! a cluster of its own.
//!
//! Invariant: everything it needs is built first; the seed is printed, and repeats a run.
//! Failure: exit code 1 with the finding.

use std::process::ExitCode;

use anyhow::Result;

use super::{guest, setup, up};
use crate::{run, suite, workspace};

/// Kills programs, changes desired states, takes snapshots and backups and returns to them at random, then checks that
/// every machine reaches the state in its object.
#[derive(Debug, clap::Args)]
pub(crate) struct Chaos {
    /// Duration of the chaos, in minutes.
    #[arg(long, default_value_t = 20)]
    minutes: u32,
    /// Seed of the random choices [default: from the clock].
    #[arg(long)]
    seed: Option<u64>,
    /// Number of machines, at least 6.
    #[arg(long, default_value_t = 10)]
    machines: u32,
    /// Number of nodes.
    #[arg(long, default_value_t = 2)]
    nodes: u8,
}

impl Chaos {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let installed = setup::ensure(false)?;
        if installed != ExitCode::SUCCESS {
            return Ok(installed);
        }
        up::prepare_cluster()?;
        guest::ensure()?;
        suite::build()?;
        let mut chaos = run::root_command(workspace::target().join("debug/chaos"));
        chaos.arg("--minutes").arg(self.minutes.to_string());
        chaos.arg("--machines").arg(self.machines.to_string());
        chaos.arg("--nodes").arg(self.nodes.to_string());
        // Deadlines follow the speed of this machine.
        let (name, value) = suite::slowness();
        chaos.env(name, value);
        if let Some(seed) = self.seed {
            chaos.arg("--seed").arg(seed.to_string());
        }
        Ok(if chaos.status()?.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
