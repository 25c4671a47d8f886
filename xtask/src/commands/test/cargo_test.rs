//! Runs `cargo test`, lets its output through, and counts.
//!
//! Invariant: the counts are those of the `test result:` lines of all test programs.
//! Failure: a run that fails without a failed test (it did not compile, or a test program died) counts as
//! one failure.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Count;
use crate::run;

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
            if let Some(more) = parse(&text) {
                count.passed += more.passed;
                count.failed += more.failed;
            }
        }
    }
    let status = child.wait().with_context(|| format!("wait for {line}"))?;
    if !status.success() && count.failed == 0 {
        count.failed = 1;
    }
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
