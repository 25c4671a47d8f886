//! `bench queue`: the controller's work queue against controller-runtime's, in the shapes of its
//! benchmarks.
//!
//! Invariant: both are measured in one run and in turns, each part in a process of its own.
//! Failure: the part that could not be measured, with what the measuring program reported.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::samples::Samples;
use super::table::{Figure, Row};
use crate::{run, workspace};

/// Most of the other queue's time that ours may take: five times its operations per second.
const BUDGET: f64 = 0.2;

/// Shapes and what is counted in them.
const SHAPES: [(&str, &str); 3] = [
    ("add-get-done", "add 1,000, get and finish 1,000: per key"),
    ("add", "add 1,000 that are there: per key"),
    (
        "contended",
        "add, 1,000,000 queued, 1,000 workers of 1 ms: per key",
    ),
];

const COUNTS: [&str; 2] = ["10000", "1000000"];

const OURS: &str = "vmlet";
const THEIRS: &str = "controller-runtime";

/// Measures the work queue.
#[derive(Debug, clap::Args)]
pub(super) struct Queue {}

impl Queue {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        println!("bench: building");
        let theirs = build_theirs()?;
        run::check(cargo().arg("--no-run"))?;
        let mut samples = Samples::default();
        let memory = COUNTS.map(|count| vec!["memory", count]);
        for words in SHAPES.map(|(shape, _)| vec![shape]).iter().chain(&memory) {
            println!("bench: {}", words.join(" "));
            let part = words.join("_");
            let ours = run::output(cargo().arg("--").args(words))?;
            samples.add(&format!("{OURS}_{part}"), &ours)?;
            let theirs = run::output(run::command(&theirs).args(words))?;
            samples.add(&format!("{THEIRS}_{part}"), &theirs)?;
        }
        super::publish("queue", &samples, &rows(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn cargo() -> std::process::Command {
    let mut cargo = workspace::cargo();
    cargo.args(["bench", "--quiet", "-p", "workqueue", "--bench", "shapes"]);
    cargo
}

fn build_theirs() -> Result<PathBuf> {
    let product = workspace::target().join("bench/priorityqueue");
    let mut go = run::command("go");
    go.current_dir(workspace::root().join("tests/tools/priorityqueue"))
        .env("CGO_ENABLED", "0")
        .args(["build", "-mod=mod", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&product)
        .arg(".");
    run::check(&mut go)?;
    Ok(product)
}

fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (shape, what) in SHAPES {
        let nanos = |whose: &str| samples.series(&format!("{whose}_{shape}"), "nanos");
        let ours = nanos(OURS)?;
        let theirs = nanos(THEIRS)?;
        let share = ours.p50() / theirs.p50();
        rows.push(Row::many(format!("{what}: ours"), "ns", ours));
        rows.push(Row::many(format!("  {THEIRS}"), "ns", theirs));
        let row = Row::one("  our part of its time", "", share);
        rows.push(row.within(Figure::P50, BUDGET, "the machine was busy"));
    }
    for count in COUNTS {
        let keys: f64 = count.parse()?;
        let part = |whose: &str| format!("{whose}_memory_{count}");
        let one = |what: String, bytes: f64| Row::one(what, "B", bytes / keys);
        let resident = |whose: &str| samples.growth(&part(whose), "rss");
        let live = samples.growth(&part(THEIRS), "heap")?;
        rows.push(one(
            format!("memory per key of {count}: ours"),
            resident(OURS)?,
        ));
        rows.push(one(format!("  {THEIRS}, resident"), resident(THEIRS)?));
        rows.push(one(format!("  {THEIRS}, live objects"), live));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_times_as_fast_is_within_the_budget_and_less_is_not() {
        let mut samples = Samples::default();
        for (shape, ours) in SHAPES.iter().zip([20.0, 19.0, 21.0]) {
            let printed =
                |nanos: f64| format!(r#"{{"samples":{{"nanos":[{nanos}]}},"facts":{{}}}}"#);
            let part = shape.0;
            samples
                .add(&format!("{OURS}_{part}"), &printed(ours))
                .unwrap();
            samples
                .add(&format!("{THEIRS}_{part}"), &printed(100.0))
                .unwrap();
        }
        for count in COUNTS {
            let printed = r#"{"samples":{"rss":[0.0,20000.0],"heap":[0.0,10000.0]},"facts":{}}"#;
            for whose in [OURS, THEIRS] {
                samples
                    .add(&format!("{whose}_memory_{count}"), printed)
                    .unwrap();
            }
        }
        let rows = rows(&samples).unwrap();
        let verdicts = [2, 5, 8].map(|row: usize| rows[row].to_json()["verdict"].clone());
        assert_eq!(verdicts, ["within", "within", "over"]);
        let memory = rows[9].to_json();
        assert_eq!(memory["figures"]["value"], 2.0);
    }
}
