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

/// More files than this do not fail by chance.
const MOST_UNSTEADY: usize = 3;

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

/// Runs the files of a part with whole stacks, [`LANES`] at a time; each one's output comes in one piece. A few that
/// fail run once more, see [`again`].
pub(super) fn side_by_side(part: Part) -> Result<Count> {
    run_test::build()?;
    let files = Mutex::new(run_test::files(part)?.into_iter());
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).next();
    let counts = thread::scope(|scope| {
        let lane = || -> Result<Vec<(String, Count)>> {
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
    again(&mut counts, |file| one_file(part, file))?;
    Ok(counts.into_iter().map(|(_, count)| count).sum())
}

/// Runs the files that failed once more, alone, if they are not more than [`MOST_UNSTEADY`]: programs that are not ours
/// have deadlines of seconds, which a machine that stands still for a moment lets pass. What they said at first stays
/// printed, and those that pass now are counted as unsteady: each is a defect to be looked into.
fn again(counts: &mut [(String, Count)], mut run: impl FnMut(&str) -> Result<Count>) -> Result<()> {
    let failed = |count: &Count| count.failed > 0;
    if counts.iter().filter(|(_, count)| failed(count)).count() > MOST_UNSTEADY {
        return Ok(());
    }
    for (file, count) in counts.iter_mut().filter(|(_, count)| failed(count)) {
        println!("\n-- {file} failed and runs once more, alone");
        let first = *count;
        *count = run(file)?;
        if !failed(count) {
            count.unsteady = first.failed;
        }
    }
    Ok(())
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
        unsteady: 0,
    })
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
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_counts_as_one_failure() {
        let ended = run(run::command("sh").args(["-c", "exit 101"])).unwrap();
        assert_eq!(ended, count(0, 1, 0));
        let ended = run(run::command("sh").args([
            "-c",
            "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'",
        ]));
        assert_eq!(ended.unwrap(), count(2, 0, 0));
    }

    /// Files by name, of which some fail at first, and what became of them and how often each ran again.
    fn tried_again(fail_at_first: usize, second: Count) -> (Count, usize) {
        let one = |n| match n < fail_at_first {
            true => count(1, 2, 0),
            false => count(3, 0, 0),
        };
        let mut counts: Vec<_> = (0..5).map(|n| (format!("file{n}"), one(n))).collect();
        let mut runs = 0;
        let run = |_: &str| {
            runs += 1;
            Ok(second)
        };
        again(&mut counts, run).unwrap();
        (counts.into_iter().map(|(_, count)| count).sum(), runs)
    }

    #[test]
    fn a_few_files_that_fail_run_once_more_and_are_told_of() {
        let steady = count(3, 0, 0);
        assert_eq!(tried_again(0, steady), (count(15, 0, 0), 0));
        assert_eq!(tried_again(2, steady), (count(15, 0, 4), 2));
        // What fails again has failed.
        assert_eq!(tried_again(1, count(2, 1, 0)), (count(14, 1, 0), 1));
        // This is no chance.
        assert_eq!(tried_again(4, steady), (count(7, 8, 0), 0));
        let text = count(15, 0, 4).to_string();
        assert_eq!(
            text,
            "15 passed, 0 failed, 4 of them unsteady: they failed at first"
        );
    }
}
