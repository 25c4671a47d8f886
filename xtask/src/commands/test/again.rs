//! Runs what failed once more, alone, when it is little.
//!
//! Programs that are not ours have deadlines of seconds, which a machine that stands still for a moment lets pass.
//!
//! Invariant: what was said at first stays printed; what passes only now is counted as unsteady, which the summary tells:
//! each is a defect to be looked into.
//! Failure: what fails again has failed.

use std::fmt::Display;
use std::process::Command;

use anyhow::Result;

use super::Count;
use super::cargo_test::Ended;

/// More tests, or files of tests, than this do not fail by chance.
const MOST: usize = 3;

/// Runs the tests of a command, which gets the names of those that it is to run, or none for all of them.
pub(super) fn tests(
    mut command: impl FnMut(&[String]) -> Result<Command>,
    mut run: impl FnMut(&mut Command) -> Result<Ended>,
) -> Result<Count> {
    let Ended { mut count, failed } = run(&mut command(&[])?)?;
    if failed.is_empty() || failed.len() > MOST || failed.len() != count.failed {
        return Ok(count);
    }
    println!("\n-- {} failed and run once more, alone", failed.join(", "));
    let second = run(&mut command(&failed)?)?.count;
    let all = count.failed;
    count.failed = second.failed.min(all);
    // None of them may have run.
    if second.passed + second.failed < all {
        count.failed = all;
    }
    count.unsteady = all - count.failed;
    count.passed += count.unsteady;
    Ok(count)
}

/// Runs the files of tests that failed.
pub(super) fn files<F: Display>(
    counts: &mut [(F, Count)],
    mut run: impl FnMut(&F) -> Result<Count>,
) -> Result<()> {
    let failed = |count: &Count| count.failed > 0;
    if counts.iter().filter(|(_, count)| failed(count)).count() > MOST {
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

    /// Files by name, of which some fail at first, and what became of them and how often each ran again.
    fn tried_again(fail_at_first: usize, second: Count) -> (Count, usize) {
        let one = |n| match n < fail_at_first {
            true => count(1, 2, 0),
            false => count(3, 0, 0),
        };
        let mut counts: Vec<_> = (0..5).map(|n| (format!("file{n}"), one(n))).collect();
        let mut runs = 0;
        let run = |_: &String| {
            runs += 1;
            Ok(second)
        };
        files(&mut counts, run).unwrap();
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

    /// A run of ten tests and more that fail, with the names of some of these, and what a second run comes to.
    fn again(fail: usize, named: usize, second: Count) -> (Count, Vec<Vec<String>>) {
        let names: Vec<_> = (0..named).map(|n| format!("t{n}")).collect();
        let mut asked = Vec::new();
        let command = |names: &[String]| {
            asked.push(names.to_vec());
            Ok(Command::new("true"))
        };
        let mut results = [(count(10, fail, 0), names), (second, vec![])].into_iter();
        let run = |_: &mut Command| {
            let (count, failed) = results.next().unwrap();
            Ok(Ended { count, failed })
        };
        (tests(command, run).unwrap(), asked)
    }

    #[test]
    fn a_few_tests_that_fail_run_once_more_by_name() {
        let names = |n| (0..n).map(|n| format!("t{n}")).collect::<Vec<_>>();
        assert_eq!(again(0, 0, count(0, 0, 0)), (count(10, 0, 0), vec![vec![]]));
        let (ended, asked) = again(2, 2, count(2, 0, 0));
        assert_eq!((ended, asked), (count(12, 0, 2), vec![vec![], names(2)]));
        assert_eq!(again(3, 3, count(1, 2, 0)).0, count(11, 2, 1));
        // Nothing ran, too many failed, or a program died.
        assert_eq!(again(1, 1, count(0, 0, 0)).0, count(10, 1, 0));
        assert_eq!(again(4, 4, count(4, 0, 0)).0, count(10, 4, 0));
        assert_eq!(again(2, 1, count(1, 0, 0)).0, count(10, 2, 0));
    }
}
