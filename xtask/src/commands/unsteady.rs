//! `unsteady`: adds the unsteady tests of the last run to their history in the repository.
//!
//! Invariant: each test of the run is counted once for each call.
//! Failure: without a report of a run nothing is written.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::suite::{History, UNSTEADY};
use crate::{run, workspace};

/// Adds the unsteady tests of the last run to tests/unsteady.tsv.
#[derive(Debug, clap::Args)]
pub(crate) struct Unsteady {
    /// Why they passed only when they ran once more, as far as it is known.
    reason: String,
}

/// An entry of target/unsteady.json.
#[derive(Debug, Deserialize)]
struct Entry {
    job: String,
}

impl Unsteady {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let is_line = !self.reason.trim().is_empty() && !self.reason.contains(['\t', '\n']);
        ensure!(is_line, "the reason must be one line without tabs");
        let last = workspace::target().join("unsteady.json");
        let text = fs::read_to_string(&last)
            .with_context(|| format!("read {}: run `cargo xtask test` before", last.display()))?;
        let entries: Vec<Entry> = serde_json::from_str(&text).context("parse the last run")?;
        let file = workspace::root().join(UNSTEADY);
        let text = fs::read_to_string(&file).with_context(|| format!("read {UNSTEADY}"))?;
        let mut history = History::parse(&text)?;
        let date = run::output(run::command("date").args(["--utc", "+%Y-%m-%d"]))?;
        for entry in &entries {
            history.add(&entry.job, date.trim(), &self.reason);
            println!("{UNSTEADY}: {}", entry.job);
        }
        fs::write(&file, history.to_string()).with_context(|| format!("write {UNSTEADY}"))?;
        Ok(ExitCode::SUCCESS)
    }
}
