//! Runs `cargo test`, lets its output through, and counts.
//!
//! Invariant: the counts are those of the `test result:` lines of all test programs.
//! Failure: a run that fails without a failed test (it did not compile, or a test program died) counts as
//! one failure.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::{Count, again};
use crate::commands::run_test::{self, File, Part};
use crate::run;

/// Stacks that run at the same time: much of a test's time is waiting for a guest.
const LANES: usize = 2;

/// What came of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) count: Count,
    /// Names of the tests that failed; fewer than are counted when a program died.
    pub(super) failed: Vec<String>,
}

/// Runs the tests of a command. A few that fail run once more, see [`again::tests`].
pub(super) fn run(command: impl FnMut(&[String]) -> Result<Command>) -> Result<Count> {
    again::tests(command, run_once)
}

/// Runs the command and adds up its tests.
fn run_once(command: &mut Command) -> Result<Ended> {
    let line = run::describe(command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {line}"))?;
    let mut ended = Ended::default();
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).split(b'\n') {
            let text = text.with_context(|| format!("read the output of {line}"))?;
            let text = String::from_utf8_lossy(&text);
            println!("{text}");
            ended.count += parse(&text).unwrap_or_default();
            ended.failed.extend(failed(&text));
        }
    }
    let status = child.wait().with_context(|| format!("wait for {line}"))?;
    if !status.success() && ended.count.failed == 0 {
        ended.count.failed = 1;
    }
    Ok(ended)
}

/// Runs the files of a part with whole stacks, [`LANES`] at a time; each one's output comes in one piece. A few that
/// fail run once more, see [`again::files`].
pub(super) fn side_by_side(part: Part) -> Result<Count> {
    run_test::build()?;
    let files = Mutex::new(run_test::files(part)?.into_iter());
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).next();
    let counts = thread::scope(|scope| {
        let lane = || -> Result<Vec<(File, Count)>> {
            let mut counts = Vec::new();
            while let Some(file) = next() {
                let count = one_file(part, &file)?;
                counts.push((file, count));
            }
            Ok(counts)
        };
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let ended = lanes.into_iter().map(ScopedJoinHandle::join);
        ended
            .map(|end| end.unwrap_or_else(|_| bail!("a lane of tests panicked")))
            .collect::<Result<Vec<_>>>()
    });
    let mut counts: Vec<_> = counts?.into_iter().flatten().collect();
    again::files(&mut counts, |file| one_file(part, file))?;
    Ok(counts.into_iter().map(|(_, count)| count).sum())
}

fn one_file(part: Part, file: &File) -> Result<Count> {
    let mut command = run_test::cargo_file(part, file)?;
    let started = Instant::now();
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {}", run::describe(&command)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut count: Count = text.lines().filter_map(parse).sum();
    if !output.status.success() && count.failed == 0 {
        count.failed = 1;
    }
    let seconds = started.elapsed().as_secs();
    println!("\n-- {file}: {count}, {seconds} s\n{}", text.trim());
    Ok(count)
}

/// The numbers of a line such as `test result: ok. 12 passed; 0 failed; 3 ignored; …`.
fn parse(line: &str) -> Option<Count> {
    let numbers = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        let part = numbers
            .split("; ")
            .find_map(|part| part.strip_suffix(word))?;
        part.trim().parse::<usize>().ok()
    };
    Some(Count {
        passed: number(" passed")?,
        failed: number(" failed")?,
        unsteady: 0,
    })
}

/// The test that a line such as `test NAME ... FAILED` is about.
fn failed(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(passed: usize, failed: usize, unsteady: usize) -> Count {
        Count {
            passed,
            failed,
            unsteady,
        }
    }

    #[test]
    fn a_result_line_is_counted_and_others_are_not() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(parse(line), Some(count(12, 1, 0)));
        assert_eq!(parse("running 3 tests"), None);
        assert_eq!(parse("test result: odd"), None);
        assert_eq!(failed("test a::b ... FAILED").as_deref(), Some("a::b"));
        for other in [
            "test a::b ... ok",
            "test result: FAILED. 1 passed",
            "FAILED",
        ] {
            assert_eq!(failed(other), None);
        }
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_counts_as_one_failure() {
        let shell = |script: &str| run_once(run::command("sh").args(["-c", script])).unwrap();
        assert_eq!(shell("exit 101").count, count(0, 1, 0));
        let ended = shell("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'");
        assert_eq!(ended.count, count(2, 0, 0));
        let ended = shell(
            "echo 'test x ... FAILED'; echo 'test result: FAILED. 2 passed; 1 failed'; exit 1",
        );
        assert_eq!(
            (ended.count, ended.failed),
            (count(2, 1, 0), vec!["x".to_owned()])
        );
    }
}
