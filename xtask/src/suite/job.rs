//! One thing to run: a test program, one test of it, or a check.
//!
//! Invariant: whatever it prints is kept in `target/test-logs`; it ends by its deadline.
//! Failure: a job that cannot be started, does not end or says less than it should has failed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::ClockId;

use super::checks::Check;
use super::child::{self, End};
use super::count::Count;
use super::kit::Kit;
use super::libtest::{self, Verdict};
use super::order::KEEP;
use super::outcome::{Failure, Outcome};
use super::part::Part;
use super::programs::TestProgram;
use crate::{stack, workspace};

/// A job may take so many times what its weight specifies, and never less than [`LEAST`].
const TIMES: u32 = 8;
const LEAST: Duration = Duration::from_secs(1200);

/// When the waits of tests end, in seconds of the monotonic clock: see `e2e::eventually`.
const ENDS: &str = "VMLET_TEST_ENDS";
/// What a test may take to end and to remove what it made, after its last wait has ended.
const LAST: Duration = Duration::from_secs(120);

/// Where tests put what their stacks leave when they fail: logs, objects, consoles.
const FAILURES: &str = "VMLET_TEST_FAILURES";

/// How many of its last lines an error shows of a program that did not end in order.
const LAST_LINES: usize = 20;

/// One thing to run.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// Unique in a run.
    pub(super) name: String,
    /// Its part.
    pub(super) part: Part,
    /// What it runs.
    pub(super) what: What,
    /// What it takes on an idle machine.
    pub(super) expected: Duration,
}

/// What a job runs.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// Tests of a program.
    Tests {
        /// The program.
        program: TestProgram,
        /// By name; those that need root, or none of these.
        tests: Vec<String>,
        /// Whether they are all of their sort in the program.
        all: bool,
    },
    /// A check.
    Check(Check),
}

impl Job {
    /// A check, as a job.
    pub(super) fn check(check: Check) -> Self {
        Self {
            name: check.name(),
            part: check.part(),
            what: What::Check(check),
            expected: Duration::ZERO,
        }
    }

    /// How many tests it has; a check is one.
    pub(super) fn tests(&self) -> usize {
        match &self.what {
            What::Tests { tests, .. } => tests.len(),
            What::Check(_) => 1,
        }
    }

    /// What has to be there before it starts.
    pub(super) fn kit(&self) -> Option<Kit> {
        Kit::of_test(&self.name).or_else(|| Kit::for_part(self.part))
    }

    /// The same job, with only the tests that failed.
    pub(super) fn again(&self, outcome: &Outcome) -> Self {
        let mut job = self.clone();
        if let What::Tests { tests, all, .. } = &mut job.what {
            *tests = outcome.failures.iter().map(|f| f.test.clone()).collect();
            *all = false;
        }
        job
    }

    /// Runs it; `variables` are added to its environment.
    pub(super) fn run(&self, variables: &[(&str, String)]) -> Outcome {
        let begun = Instant::now();
        let ended = self.output(variables);
        let mut outcome = match ended {
            Ok((output, end)) => self.judge(&output, end),
            Err(error) => Outcome::not_run(&self.name, self.part, &format!("{error:#}")),
        };
        outcome.took = begun.elapsed();
        outcome
    }

    fn output(&self, variables: &[(&str, String)]) -> Result<(String, End)> {
        let path = self.log();
        let failures = failures().join(self.folder());
        // The same test ran before, in this run.
        set_aside(&path)?;
        set_aside(&failures)?;
        let log = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let mut command = self.command()?;
        command.stdout(log.try_clone()?).stderr(log);
        command.env(FAILURES, failures);
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        let deadline = (self.expected * TIMES).max(LEAST);
        let ends = Duration::from(ClockId::CLOCK_MONOTONIC.now()?) + deadline - LAST;
        command.env(ENDS, ends.as_secs().to_string());
        let stacks = self.stacks();
        File::create(&stacks).with_context(|| format!("create {}", stacks.display()))?;
        command.env(stack::LIST_VARIABLE, &stacks);
        let is_kept = variables.iter().any(|(name, _)| *name == KEEP);
        let removed = (!is_kept).then_some(stacks.as_path());
        let end = child::end_within(&mut command, deadline, removed)?;
        let output = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok((String::from_utf8_lossy(&output).into_owned(), end))
    }

    fn command(&self) -> Result<Command> {
        let (program, tests, all) = match &self.what {
            What::Check(check) => return check.command(),
            What::Tests {
                program,
                tests,
                all,
            } => (program, tests, all),
        };
        let root = self.part != Part::Unit;
        let mut command = program.command(root);
        if !all {
            command.arg("--exact").args(tests);
        }
        if root {
            command.arg("--ignored");
        }
        if self.part == Part::Integration {
            // They wait more than they compute.
            command.arg("--test-threads=3");
        }
        // Numbers that tests print are part of the result.
        command.arg("--show-output");
        Ok(command)
    }

    fn judge(&self, output: &str, end: End) -> Outcome {
        let success = matches!(end, End::Exited(status) if status.success());
        let (count, failures) = match (&self.what, end) {
            (_, End::Killed { remains }) => {
                let last = crate::run::tail(output, LAST_LINES);
                let why = format!(
                    "it did not end by its deadline and was killed; what it had started:\n{remains}\nit \
                     printed:\n{last}"
                );
                (Count::failed(1), vec![Failure::of_program(&why)])
            }
            (What::Check(check), _) => {
                let count = check.count(output, success);
                let failed =
                    (count.failed > 0).then(|| Failure::of_test(String::new(), output, output));
                (count, failed.into_iter().collect())
            }
            (What::Tests { tests, .. }, End::Exited(status)) => {
                match libtest::judge(output, success, tests.len()) {
                    Verdict::Died(why) => {
                        let last = crate::run::tail(output, LAST_LINES);
                        let why = format!("{why} ({status})\n{last}");
                        (Count::failed(1), vec![Failure::of_program(&why)])
                    }
                    Verdict::Ended { passed, failed } => {
                        let count = Count {
                            passed,
                            failed: failed.len(),
                            unsteady: 0,
                        };
                        let failures = failed.into_iter().map(|test| {
                            let section = libtest::section(output, &test);
                            Failure::of_test(test, output, section)
                        });
                        (count, failures.collect())
                    }
                }
            }
        };
        Outcome {
            job: self.name.clone(),
            part: self.part,
            count,
            took: Duration::ZERO,
            failures,
        }
    }

    /// Where its output is kept.
    pub(super) fn log(&self) -> PathBuf {
        logs().join(format!("{}.log", self.folder()))
    }

    /// Where the stacks are listed that it starts.
    pub(super) fn stacks(&self) -> PathBuf {
        self.log().with_extension("stacks")
    }

    fn folder(&self) -> String {
        self.name.replace("::", ".").replace(' ', "-")
    }
}

/// Where the output of jobs is kept.
pub(super) fn logs() -> PathBuf {
    workspace::target().join("test-logs")
}

/// What is kept of tests that failed.
pub(super) fn failures() -> PathBuf {
    workspace::target().join("test-failures")
}

/// Renames what is at `path`, if anything is: to the first of `path.1`, `path.2` and so on that is
/// free.
fn set_aside(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let numbered = (1..).map(|n| PathBuf::from(format!("{}.{n}", path.display())));
    let free = numbered.into_iter().find(|path| !path.exists());
    let to = free.with_context(|| format!("no free name for {}", path.display()))?;
    fs::rename(path, &to).with_context(|| format!("rename {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_time_left_is_kept_under_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.b");
        set_aside(&path).unwrap();
        for time in ["first", "second", "third"] {
            set_aside(&path).unwrap();
            fs::write(&path, time).unwrap();
        }
        let left = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            [left("a.b.1"), left("a.b.2"), left("a.b")],
            ["first", "second", "third"]
        );
    }
}
