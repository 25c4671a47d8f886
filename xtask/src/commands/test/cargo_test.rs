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

use super::Count;
use crate::commands::run_test::{self, Part};
use crate::run;

/// Stacks that run at the same time: much of a test's time is waiting for a guest.
const LANES: usize = 2;

/// Runs the command and adds up its tests.
pub(super) fn run(command: &mut Command) -> Result<Count> {
    let line = run::describe(command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {line}"))?;
    let mut count = Count::default();
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).split(b'\n') {
            let text = text.with_context(|| format!("read the output of {line}"))?;
            let text = String::from_utf8_lossy(&text);
            println!("{text}");
            count += parse(&text).unwrap_or_default();
        }
    }
    let status = child.wait().with_context(|| format!("wait for {line}"))?;
    if !status.success() && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// Runs the files of a part with whole stacks, [`LANES`] at a time; each one's output comes in one piece.
pub(super) fn side_by_side(part: Part) -> Result<Count> {
    run_test::build()?;
    let files = Mutex::new(run_test::files(part)?.into_iter());
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).next();
    let counts = thread::scope(|scope| {
        let lane = || -> Result<Count> {
            let mut sum = Count::default();
            while let Some(file) = next() {
                sum += one_file(part, &file)?;
            }
            Ok(sum)
        };
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let ended = lanes.into_iter().map(ScopedJoinHandle::join);
        ended
            .map(|end| end.unwrap_or_else(|_| bail!("a lane of tests panicked")))
            .collect::<Result<Vec<_>>>()
    });
    Ok(counts?.into_iter().sum())
}

fn one_file(part: Part, file: &str) -> Result<Count> {
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_counted_and_others_are_not() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(
            parse(line),
            Some(Count {
                passed: 12,
                failed: 1
            })
        );
        assert_eq!(parse("running 3 tests"), None);
        assert_eq!(parse("test result: odd"), None);
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_counts_as_one_failure() {
        let count = run(run::command("sh").args(["-c", "exit 101"])).unwrap();
        assert_eq!(
            count,
            Count {
                passed: 0,
                failed: 1
            }
        );
        let count = run(run::command("sh").args([
            "-c",
            "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'",
        ]));
        assert_eq!(
            count.unwrap(),
            Count {
                passed: 2,
                failed: 0
            }
        );
    }
}
