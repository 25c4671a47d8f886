//! The summary of a run, on the terminal and as JSON in the build folder.
//!
//! Invariant: the last line has the counts alone; what is unsteady stands above it by name.
//! Failure: a file that cannot be written is an error.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::count::Count;
use super::host::Host;
use super::idle::Since;
use super::outcome::{Failure, Outcome};
use super::part::Part;
use super::retry;
use super::unsteady::History;
use crate::workspace;

/// How many of the slowest jobs the summary lists.
const SLOWEST: usize = 10;

/// All that happened, below the build folder.
const FILE: &str = "test-report.json";
/// What passed only when it ran once more, beside it.
const UNSTEADY: &str = "unsteady.json";

/// Everything that happened.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    host: Host,
    processors: usize,
    slowness: f64,
    seconds: u64,
    stages: Vec<Stage>,
    /// When the first test of a node, an API server or a cluster had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_stack_seconds: Option<u64>,
    jobs: Vec<Outcome>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// What earlier runs had.
    #[serde(skip)]
    history: History,
    #[serde(skip)]
    begun: Since,
}

/// What follows one after the other.
#[derive(Debug, Serialize)]
struct Stage {
    name: &'static str,
    seconds: u64,
    idle_percent: Option<u64>,
}

/// A test that passed only when it ran once more.
#[derive(Debug, Serialize)]
struct Unsteady<'a> {
    job: &'a str,
    #[serde(flatten)]
    failure: &'a Failure,
}

impl Report {
    /// An empty one, from now on.
    pub(super) fn new(host: Host, slowness: f64, history: History) -> Self {
        Self {
            host,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            slowness,
            seconds: 0,
            stages: Vec::new(),
            first_stack_seconds: None,
            jobs: Vec::new(),
            notes: Vec::new(),
            history,
            begun: Since::now(),
        }
    }

    /// Runs a stage and notes how long it took and what it left idle.
    pub(super) fn stage<T>(&mut self, name: &'static str, stage: impl FnOnce(&mut Self) -> T) -> T {
        println!("\n== {name}");
        let since = Since::now();
        let result = stage(self);
        self.stages.push(Stage {
            name,
            seconds: since.elapsed().as_secs(),
            idle_percent: since.idle_percent(),
        });
        result
    }

    /// Adds what became of jobs.
    pub(super) fn add(&mut self, outcomes: impl IntoIterator<Item = Outcome>) {
        self.jobs.extend(outcomes);
    }

    /// Notes when the first test of a stack had ended.
    pub(super) fn first_stack(&mut self, seconds: Option<u64>) {
        self.first_stack_seconds = seconds;
    }

    /// Adds a line that stands above the counts.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// All tests; more unsteady ones than may be make the run fail.
    pub(super) fn sum(&self) -> Count {
        let mut sum: Count = self.jobs.iter().map(|job| job.count).sum();
        if sum.unsteady > retry::MOST {
            sum.passed -= sum.unsteady;
            sum.failed += sum.unsteady;
        }
        sum
    }

    /// Prints the summary and writes the files.
    pub(super) fn finish(&mut self) -> Result<Count> {
        self.seconds = self.begun.elapsed().as_secs();
        // By now a guest has found out what accelerates it.
        self.host = Host::here();
        let target = workspace::target();
        let write = |name: &str, text: String| {
            fs::write(target.join(name), text).with_context(|| format!("write target/{name}"))
        };
        write(FILE, serde_json::to_string_pretty(self)?)?;
        let unsteady = serde_json::to_string_pretty(&self.unsteady())?;
        write(UNSTEADY, unsteady)?;
        let sum = self.sum();
        println!("\n{self}\n\n{sum}");
        Ok(sum)
    }

    fn unsteady(&self) -> Vec<Unsteady<'_>> {
        let jobs = self.jobs.iter().filter(|job| job.count.unsteady > 0);
        jobs.flat_map(|job| {
            let job_name = job.job.as_str();
            let failures = job.failures.iter();
            failures.map(move |failure| Unsteady {
                job: job_name,
                failure,
            })
        })
        .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "  stage             seconds  idle")?;
        for stage in &self.stages {
            let idle = stage.idle_percent.map(|idle| format!("{idle} %"));
            let name = stage.name;
            let seconds = stage.seconds;
            let idle = idle.unwrap_or_default();
            writeln!(formatter, "  {name:<16}  {seconds:>7}  {idle:>4}")?;
        }
        if let Some(seconds) = self.first_stack_seconds {
            writeln!(formatter, "  to the first stack {seconds:>6}")?;
        }
        writeln!(formatter, "  all               {:>7}\n", self.seconds)?;

        writeln!(
            formatter,
            "  part         passed  failed  seconds of its jobs"
        )?;
        for (part, (count, took)) in self.parts() {
            let Count { passed, failed, .. } = count;
            let seconds = took.as_secs();
            writeln!(
                formatter,
                "  {part:<11}  {passed:>6}  {failed:>6}  {seconds:>7}"
            )?;
        }

        let mut slowest: Vec<_> = self.jobs.iter().collect();
        slowest.sort_by_key(|job| Reverse(job.took));
        writeln!(formatter, "\n  the slowest      seconds")?;
        for job in slowest.iter().take(SLOWEST) {
            writeln!(formatter, "  {:>7}  {}", job.took.as_secs(), job.job)?;
        }
        for note in &self.notes {
            write!(formatter, "\n  {note}")?;
        }
        formatter.write_str(&self.defects())?;
        write!(formatter, "\n\n{}", self.host)
    }
}

impl Report {
    fn parts(&self) -> BTreeMap<Part, (Count, Duration)> {
        let mut parts: BTreeMap<Part, (Count, Duration)> = BTreeMap::new();
        for job in &self.jobs {
            let (count, took) = parts.entry(job.part).or_default();
            *count += job.count;
            *took += job.took;
        }
        parts
    }

    /// What failed, and what passed only when it ran once more.
    fn defects(&self) -> String {
        let mut text = String::new();
        for job in self.jobs.iter().filter(|job| job.count.failed > 0) {
            for failure in &job.failures {
                let _ = write!(text, "\n  failed: {} {}", job.job, failure.test);
                for line in &failure.error {
                    let _ = write!(text, "\n      {line}");
                }
            }
        }
        let unsteady = self.unsteady();
        for Unsteady { job, failure } in &unsteady {
            let program = failure.late.unwrap_or_default();
            let remark = self.history.remark(job);
            let _ = write!(text, "\n  unsteady: {job}: {program} was late, {remark}");
        }
        if unsteady.len() > retry::MOST {
            let _ = write!(
                text,
                "\n  more than {} unsteady tests fail a run",
                retry::MOST
            );
        }
        text
    }
}

/// Removes the files of an earlier run, so that none of them is taken for those of a run that did not
/// come to its end.
pub(super) fn remove_earlier(target: &Path) -> Result<()> {
    for name in [FILE, UNSTEADY] {
        match fs::remove_file(target.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove target/{name}"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_unsteady(number: usize) -> Report {
        let mut report = Report::new(Host::here(), 1.0, History::default());
        for _ in 0..number {
            let mut outcome = Outcome::not_run("stacks::x", Part::Stacks, "late");
            outcome.count = Count {
                passed: 1,
                failed: 0,
                unsteady: 1,
            };
            report.add([outcome]);
        }
        report
    }

    #[test]
    fn more_unsteady_tests_than_chance_explains_fail_the_run() {
        let sum = |number| with_unsteady(number).sum().failed;
        assert_eq!(sum(retry::MOST), 0);
        assert_eq!(sum(retry::MOST + 1), retry::MOST + 1);
        let text = with_unsteady(3).to_string();
        assert!(text.contains("unsteady: stacks::x"), "{text}");
    }

    #[test]
    fn the_files_of_an_earlier_run_are_removed_and_nothing_else() {
        let target = tempfile::tempdir().unwrap();
        remove_earlier(target.path()).unwrap();
        for name in [FILE, UNSTEADY, "other.json"] {
            fs::write(target.path().join(name), "[]").unwrap();
        }
        remove_earlier(target.path()).unwrap();
        let left = fs::read_dir(target.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other.json"]);
    }
}
