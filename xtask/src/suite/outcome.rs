//! The outcome of a job.
//!
//! Invariant: every failed test of the job has a [`Failure`].
//! Failure: none.

use std::time::Duration;

use serde::Serialize;

use super::count::Count;
use super::part::Part;
use super::retry;

/// How many lines of a failure's output the lists of failures show.
const TAIL: usize = 40;
/// How many lines of an error the summary shows.
const ERROR_LINES: usize = 6;
/// How many characters of a line the summary shows.
const ERROR_WIDTH: usize = 240;

/// One job that ended.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    /// The job's name.
    pub(super) job: String,
    /// Its part.
    pub(super) part: Part,
    /// Its tests.
    pub(super) count: Count,
    /// How long it took, in seconds.
    #[serde(serialize_with = "seconds")]
    pub(super) took: Duration,
    /// The tests that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failures: Vec<Failure>,
}

/// One test that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Failure {
    /// Its name inside the program; empty when the program as a whole failed.
    pub(super) test: String,
    /// The program which is not ours and was late, so that the test may run once more.
    pub(super) late: Option<&'static str>,
    /// The first lines of its error, shortened: a summary whose middle is cut off still names
    /// every cause.
    pub(super) error: Vec<String>,
    /// The end of what it said.
    pub(super) tail: String,
}

impl Failure {
    /// A test that ended as failed, with what its program and it printed.
    pub(super) fn of_test(test: String, output: &str, section: &str) -> Self {
        Self {
            test,
            late: retry::late_program(output, section),
            error: error(section),
            tail: crate::run::tail(section, TAIL),
        }
    }

    /// A program that failed as a whole.
    pub(super) fn of_program(why: &str) -> Self {
        Self {
            test: String::new(),
            late: None,
            error: error(why),
            tail: why.to_owned(),
        }
    }
}

impl Outcome {
    /// A job that could not run.
    pub(super) fn not_run(job: &str, part: Part, why: &str) -> Self {
        Self {
            job: job.to_owned(),
            part,
            count: Count::failed(1),
            took: Duration::ZERO,
            failures: vec![Failure::of_program(why)],
        }
    }

    /// Whether all that failed in it may run once more.
    pub(super) fn may_run_again(&self) -> bool {
        !self.failures.is_empty() && self.failures.iter().all(|failure| failure.late.is_some())
    }

    /// Counts what passed when it ran once more; its first failures stay, since they are defects.
    pub(super) fn add_second(&mut self, second: &Self) {
        let all = self.count.failed;
        let ran = second.count.passed + second.count.failed;
        // Fewer than were to run again: something else failed.
        let failed = if ran == all { second.count.failed } else { all };
        self.count.failed = failed;
        self.count.unsteady = all - failed;
        self.count.passed += all - failed;
    }
}

fn error(output: &str) -> Vec<String> {
    let begin = ["Error: ", "panicked at "].map(|mark| output.rfind(mark));
    let begin = begin.into_iter().flatten().max().unwrap_or(0);
    let lines = output[begin..].lines().map(str::trim_end);
    let lines = lines.filter(|line| !line.is_empty()).take(ERROR_LINES);
    lines
        .map(|line| line.chars().take(ERROR_WIDTH).collect())
        .collect()
}

fn seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(took.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: usize, failed: usize) -> Outcome {
        Outcome {
            count: Count {
                passed,
                failed,
                unsteady: 0,
            },
            ..Outcome::not_run("x", Part::Stacks, "")
        }
    }

    #[test]
    fn the_summary_shows_the_error_and_not_what_came_before_it() {
        let lines = |output| Failure::of_program(output).error;
        let tail = "end of a log\nError: a disk is gone\n\nCaused by:\n    0: no file\n";
        assert_eq!(
            lines(tail),
            ["Error: a disk is gone", "Caused by:", "    0: no file"]
        );
        let tail = "log\nthread 'main' panicked at x.rs:1:\nno\n";
        assert_eq!(lines(tail), ["panicked at x.rs:1:", "no"]);
        assert_eq!(lines("killed at its deadline"), ["killed at its deadline"]);
        let long = format!("Error: {}", "ä\n".repeat(100));
        assert_eq!(lines(&long).len(), ERROR_LINES);
        let wide = "ä".repeat(1_000);
        assert_eq!(lines(&wide)[0].chars().count(), ERROR_WIDTH);
    }

    #[test]
    fn what_passes_the_second_time_is_unsteady() {
        let second = |passed, failed| {
            let mut first = outcome(5, 2);
            first.add_second(&outcome(passed, failed));
            let Count {
                passed,
                failed,
                unsteady,
            } = first.count;
            (passed, failed, unsteady)
        };
        assert_eq!(second(2, 0), (7, 0, 2));
        assert_eq!(second(1, 1), (6, 1, 1));
        // The program ended, or ran something else.
        assert_eq!(second(0, 1), (5, 2, 0));
        assert_eq!(second(0, 0), (5, 2, 0));
    }
}
