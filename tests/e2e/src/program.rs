//! Programs that a test runs to their end.
//!
//! Invariant: none goes on after `VMLET_TEST_ENDS`: it is killed then, so that the test fails with what
//! it waits for and keeps its logs. Programs that run while the test does something else, on the
//! runtime, are awaited by [`in_time`](crate::in_time) instead.
//! Failure: an error behind the text `not within`, which is a defect: the program may wait for ours.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait;

/// What a program may take when the test's time is over: a failed test asks for what is there.
pub(crate) const LEAST: Duration = Duration::from_secs(15);

/// The same of a chore: a failed test takes its stack down. Well below the time after which the runner
/// kills the test (`LAST` of `xtask/src/suite/job.rs`).
const LEAST_OF_CHORE: Duration = Duration::from_secs(90);

/// Runs a program without input to its end and returns what it wrote.
pub fn output(command: &mut Command) -> Result<Output> {
    output_of(command.stdin(Stdio::null()))
}

/// As [`output`], for a program with an input.
pub fn output_of(command: &mut Command) -> Result<Output> {
    output_with(command, LEAST, wait::until_end()?)
}

/// Waits for the end of a program that was started, and returns what it wrote to its pipes. `what` names
/// it.
pub fn ended(what: &str, child: Child) -> Result<Output> {
    let left = wait::until_end()?;
    match left {
        Some(left) => ended_within(what, child, left.max(LEAST)),
        None => child
            .wait_with_output()
            .with_context(|| format!("wait for {what}")),
    }
}

/// As [`output`], for a chore of the repository: it may have to start or to remove a whole stack.
pub(crate) fn chore(command: &mut Command) -> Result<Output> {
    chore_with(command, wait::until_end()?)
}

fn chore_with(command: &mut Command, left: Option<Duration>) -> Result<Output> {
    output_with(command.stdin(Stdio::null()), LEAST_OF_CHORE, left)
}

/// `left`: of the test's time.
fn output_with(command: &mut Command, least: Duration, left: Option<Duration>) -> Result<Output> {
    match left {
        Some(left) => output_within(command, left.max(least)),
        None => command.output().with_context(|| format!("run {command:?}")),
    }
}

fn output_within(command: &mut Command, within: Duration) -> Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command
        .spawn()
        .with_context(|| format!("run {command:?}"))?;
    ended_within(&format!("{command:?}"), child, within)
}

fn ended_within(what: &str, child: Child, within: Duration) -> Result<Output> {
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(within) {
        Ok(output) => output.with_context(|| format!("wait for {what}")),
        Err(_) => {
            // It may have ended between the two lines; then there is nothing to kill.
            let _ = kill(pid, Signal::SIGKILL);
            bail!("{what}: not within {within:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn what_a_program_writes_is_returned_and_one_that_does_not_end_is_named() {
        let long = Duration::from_secs(60);
        let mut echo = Command::new("sh");
        let output = output_within(echo.args(["-c", "echo a; echo b >&2; exit 3"]), long).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (&output.stdout[..], &output.stderr[..]),
            (&b"a\n"[..], &b"b\n"[..])
        );
        let mut sleep = Command::new("sleep");
        let late = output_within(sleep.arg("603"), Duration::from_millis(10)).unwrap_err();
        let late = format!("{late:#}");
        assert!(
            late.contains("603") && late.contains("not within"),
            "{late}"
        );
        let started = Command::new("sleep").arg("604").spawn().unwrap();
        let late = ended_within("a long sleep", started, Duration::from_millis(10));
        let late = format!("{:#}", late.unwrap_err());
        assert!(late.starts_with("a long sleep: not within"), "{late}");
    }

    #[test]
    fn a_chore_may_take_down_a_stack_when_the_time_of_its_test_is_over() {
        let mut echo = Command::new("sh");
        let script = ["-c", "sleep 0.1; echo down"];
        let output = chore_with(echo.args(script), Some(Duration::ZERO)).unwrap();
        assert_eq!(&output.stdout[..], b"down\n");
    }

    /// A program without a deadline hangs until the runner kills the test, which then names nothing and
    /// keeps no logs.
    #[test]
    fn every_program_of_harness_and_tests_has_a_deadline() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        for folder in ["src", "tests"] {
            wait::sources(&root.join(folder), &mut files);
        }
        assert!(files.len() > 80, "only {} sources are found", files.len());
        let mut without = Vec::new();
        for file in files {
            let name = file.strip_prefix(root).unwrap().to_owned();
            // Benchmarks are no tests.
            let is_elsewhere = name.starts_with("src/bin") || name.ends_with("src/program.rs");
            let text = std::fs::read_to_string(&file).unwrap();
            if !is_elsewhere && waits_without_end(&text, name.starts_with("tests")) {
                without.push(name);
            }
        }
        assert_eq!(without, Vec::<PathBuf>::new(), "use program::output");
    }

    /// In the harness, `status` is that of an HTTP response.
    fn waits_without_end(text: &str, is_test: bool) -> bool {
        let code: String = text.split_whitespace().collect();
        let mut ends = code.split(".wait_with_output()").skip(1);
        code.contains(".output()")
            || is_test && code.contains(".status()")
            || code.contains("::wait_with_output")
            // On the runtime a deadline is around it.
            || ends.any(|rest| !rest.starts_with(".await"))
    }

    #[test]
    fn a_wait_without_a_deadline_is_seen() {
        for code in [
            "command.output()?",
            "command\n    .status()?",
            "child.wait_with_output()?",
            "map(Child::wait_with_output)",
        ] {
            assert!(waits_without_end(code, true), "{code}");
        }
        for code in [
            "program::output(&mut curl)?",
            "child.wait_with_output().await?",
        ] {
            assert!(!waits_without_end(code, true), "{code}");
        }
        assert!(!waits_without_end("answer.status().is_success()", false));
    }
}
