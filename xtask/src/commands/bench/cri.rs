//! `bench cri`: Vmlet beside containerd with runc, on one node and in one run.
//!
//! Invariant: both runtimes are measured in turns, by one client and with one CNI configuration, so
//! that whatever else the machine does hits both.
//! Failure: the part that could not be measured, or what the stack leaked.

mod life;
mod rest;

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::samples::Samples;
use super::table::Row;
use super::{build_program, plan, proxy, publish};
use crate::commands::build::Build;
use crate::commands::up;
use crate::commands::{guest, setup};
use crate::stack::Session;

/// The measuring program; `tests/e2e` holds its source.
pub(super) const PROGRAM: &str = "bench-cri";
/// The program that measures the proxy.
const PROXY: &str = "bench-proxy";

/// Machines that are recorded while statistics are measured.
const RECORDED: u32 = 1000;

/// Measures Vmlet beside containerd.
#[derive(Debug, clap::Args)]
pub(super) struct Cri {
    /// Use the release builds and images without building them.
    #[arg(long)]
    no_build: bool,
    /// Number of pods of each runtime.
    #[arg(long, default_value_t = 30)]
    pods: u32,
}

impl Cri {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        if !self.no_build && build()? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
        let session = Session::up_beside_containerd("bench")?;
        let measured = self.measure(&session);
        let down = session.down();
        let mut samples = measured?;
        down.context("take the stack down")?;
        proxy::measure_list(&mut samples)?;
        publish("cri", &samples, &rows(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, session: &Session) -> Result<Samples> {
        let mut samples = Samples::default();
        let parts = [
            (plan::PROGRAM, "lists", 1000, "empty"),
            (PROGRAM, "cycles", self.pods, "cycles"),
            (PROGRAM, "exec", 200, "exec"),
            (PROGRAM, "forward", 5, "forward"),
            (plan::PROGRAM, "console", 10, "console"),
            (PROGRAM, "monitor", 5, "monitor"),
            (plan::PROGRAM, "record", RECORDED, "record"),
        ];
        for (program, part, count, name) in parts {
            plan::part(session, program, part, count, name, &mut samples)?;
        }
        plan::restart(session)?;
        plan::part(session, PROGRAM, "stats", 200, "stats", &mut samples)?;
        let clear = (plan::PROGRAM, "clear");
        plan::part(session, clear.0, clear.1, RECORDED, clear.1, &mut samples)?;
        Ok(samples)
    }
}

/// Everything that is measured, and what containerd needs.
pub(super) fn build() -> Result<ExitCode> {
    let installed = setup::ensure(false)?;
    if installed != ExitCode::SUCCESS {
        return Ok(installed);
    }
    println!("bench: building");
    guest::ensure()?;
    up::prepare_containerd()?;
    Build::RELEASE.programs()?;
    [plan::PROGRAM, PROGRAM, PROXY]
        .into_iter()
        .try_for_each(build_program)?;
    Ok(ExitCode::SUCCESS)
}

/// All rows, in the order of the page.
fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let mut rows = life::calls(samples)?;
    rows.extend(life::teardown(samples)?);
    rows.extend(rest::commands(samples)?);
    rows.extend(rest::forward(samples)?);
    rows.push(proxy::list_row(samples)?);
    rows.extend(rest::idle(samples)?);
    rows.extend(rest::monitor(samples)?);
    rows.extend(rest::stats(samples)?);
    Ok(rows)
}
