//! `bench flood`: what DHCP requests of one guest cost the tapmanager, and another guest.
//!
//! Invariant: both halves are measured in one run, on one node that is a namespace.
//! Failure: what the measuring program reported.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use super::samples::Samples;
use super::table::{Figure, Row};
use crate::{run, workspace};

const PART: &str = "flood";
/// Length of each half.
const SECONDS: u32 = 20;
/// Most of a core that a flood may take.
const BUDGET: f64 = 0.05;

/// Measures a flood of DHCP requests.
#[derive(Debug, clap::Args)]
pub(super) struct Flood {}

impl Flood {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        println!("bench: building");
        let program = build("tapmanager", PART)?;
        println!("bench: flood ({SECONDS} s without, {SECONDS} s with)");
        let mut program = run::root_command(program);
        program.arg(SECONDS.to_string());
        let mut samples = Samples::default();
        samples.add(PART, &run::output(&mut program)?)?;
        super::publish("flood", &samples, &rows(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds a measuring program that is a benchmark of a package; its path.
pub(super) fn build(package: &str, name: &str) -> Result<String> {
    let mut cargo = workspace::cargo();
    cargo.args(["bench", "--quiet", "-p", package, "--bench", name]);
    let printed = run::output(cargo.args(["--no-run", "--message-format", "json"]))?;
    program(&printed, name).context("cargo has built no program")
}

/// The program among the messages of cargo.
fn program(printed: &str, name: &str) -> Option<String> {
    let messages = printed.lines().map(serde_json::from_str::<Value>);
    let mut messages = messages.filter_map(Result::ok);
    let built = messages.find(|one| one["target"]["name"] == name && one["executable"].is_string());
    built?["executable"].as_str().map(str::to_owned)
}

fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let last = |name: &str| samples.last(PART, name);
    let share = |half: &str| -> Result<f64> {
        Ok(last(&format!("cpu_{half}"))? / last(&format!("seconds_{half}"))?)
    };
    let quiet = share("quiet")?;
    let flood = share("flood")?;
    let pace = last("frames")? / last("seconds_flood")?;
    let why = format!("{pace:.0} frames a second");
    let lease = |half: &str| samples.series(PART, &format!("lease_{half}"));
    Ok(vec![
        Row::one("frames of the flood", "/s", pace),
        Row::one("tapmanager, of a core: without", "", quiet),
        Row::one("  with the flood", "", flood).within(Figure::P50, BUDGET, why),
        Row::many("lease of another guest: without", "ms", lease("quiet")?),
        Row::many("  with the flood", "ms", lease("flood")?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_that_takes_more_than_its_part_of_a_core_is_over() {
        for (cpu, verdict) in [(0.9, "within"), (1.1, "over")] {
            let numbers = serde_json::json!({
                "cpu_quiet": [0.1], "seconds_quiet": [20.0], "lease_quiet": [11.0],
                "cpu_flood": [cpu], "seconds_flood": [20.0], "lease_flood": [12.0],
                "frames": [1_000_000.0],
            });
            let printed = serde_json::json!({ "samples": numbers, "facts": {} }).to_string();
            let mut samples = Samples::default();
            samples.add(PART, &printed).unwrap();
            let rows = rows(&samples).unwrap();
            assert_eq!(rows[0].to_json()["figures"]["value"], 50_000.0);
            assert_eq!(rows[2].to_json()["verdict"], verdict);
        }
    }
}
