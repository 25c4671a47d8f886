//! Parses the output of a test program.
//!
//! Invariant: a program that ran to its end has exactly one result line, whose numbers add up to
//! the tests it was to run.
//! Failure: a program without such a line has [`Verdict::Died`], whatever else it printed.

/// The content of the output of a test program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It came to its end.
    Ended {
        /// Tests that passed.
        passed: usize,
        /// Names of those that failed.
        failed: Vec<String>,
    },
    /// It did not, or did not run what it was to run; why.
    Died(String),
}

/// Judges the output and exit of a program that was to run `expected` tests.
pub(super) fn judge(output: &str, success: bool, expected: usize) -> Verdict {
    let results: Vec<_> = output.lines().filter_map(result).collect();
    let failed: Vec<String> = output.lines().filter_map(failed).collect();
    match results.as_slice() {
        [] => Verdict::Died("it ended without a result line".to_owned()),
        [(passed, failures)] if passed + failures != expected => Verdict::Died(format!(
            "it ran {} tests instead of {expected}",
            passed + failures
        )),
        [(_, failures)] if failed.len() != *failures => Verdict::Died(format!(
            "it counts {failures} failed tests and names {}",
            failed.len()
        )),
        [(_, 0)] if !success => Verdict::Died("all tests passed and it failed".to_owned()),
        [(passed, _)] => Verdict::Ended {
            passed: *passed,
            failed,
        },
        _ => Verdict::Died(format!("it ended with {} result lines", results.len())),
    }
}

/// Passed and failed of a line such as `test result: ok. 12 passed; 0 failed; 3 ignored; …`.
fn result(line: &str) -> Option<(usize, usize)> {
    let numbers = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        let part = numbers
            .split("; ")
            .find_map(|part| part.strip_suffix(word))?;
        part.trim().parse::<usize>().ok()
    };
    Some((number(" passed")?, number(" failed")?))
}

/// The test that a line such as `test NAME ... FAILED` is about.
fn failed(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.split(" - ").next().unwrap_or(name).to_owned())
}

/// The names in the answer to `--list --format terse`.
pub(super) fn names(list: &str) -> Vec<String> {
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    tests.map(str::to_owned).collect()
}

/// What the program printed about one failed test; everything, if it has no section of its own.
pub(super) fn section<'a>(output: &'a str, test: &str) -> &'a str {
    let begin = format!("---- {test} stdout ----\n");
    let Some((_, rest)) = output.split_once(&begin) else {
        return output;
    };
    let end = ["\n---- ", "\nfailures:\n"];
    let end = end.iter().filter_map(|mark| rest.find(mark)).min();
    &rest[..end.unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_FAILED: &str = "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\ntest d ... \
        ok\n\nfailures:\n\n---- b::c stdout ----\nError: x\n\n\nfailures:\n    b::c\n\ntest \
        result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 0 filtered out; finished in \
        0.1s\n";

    fn passed(number: usize) -> Verdict {
        Verdict::Ended {
            passed: number,
            failed: Vec::new(),
        }
    }

    fn died(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Died(_))
    }

    #[test]
    fn a_program_that_ends_in_order_is_counted() {
        let fine = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!(judge(fine, true, 2), passed(2));
        let one_failed = Verdict::Ended {
            passed: 2,
            failed: vec!["b::c".to_owned()],
        };
        assert_eq!(judge(ONE_FAILED, false, 3), one_failed);
    }

    #[test]
    fn a_program_that_died_has_failed_whatever_it_printed() {
        let fine = "test result: ok. 2 passed; 0 failed; 0 ignored";
        assert!(died(&judge("", true, 0)), "no result line");
        assert!(died(&judge("test a ... FAILED\n", false, 2)));
        assert!(died(&judge(fine, true, 3)), "a test did not run");
        assert!(died(&judge(fine, false, 2)), "it failed after its tests");
        assert!(died(&judge(&format!("{fine}\n{fine}"), true, 2)));
        let unnamed = "test result: FAILED. 1 passed; 1 failed; 0 ignored";
        assert!(died(&judge(unnamed, false, 2)), "a failure without a name");
    }

    #[test]
    fn a_failed_test_has_its_own_section() {
        assert_eq!(section(ONE_FAILED, "b::c"), "Error: x\n\n");
        assert_eq!(section("other", "b::c"), "other");
    }

    #[test]
    fn a_list_names_tests_and_no_benches() {
        assert_eq!(names("a::b: test\nc: benchmark\nd: test\n"), ["a::b", "d"]);
    }
}
