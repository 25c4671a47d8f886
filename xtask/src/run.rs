//! Runs other programs: as root where needed, always with an error that repeats the command line.
//!
//! Invariant: nothing here reads the terminal; children get an empty stdin unless they are meant to
//! be interactive.
//! Failure: a program that is missing, fails or outlives its deadline is an error naming the
//! command, its exit status and the end of what it said on stderr.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// A command with an empty stdin, found also where only root's PATH looks.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env("PATH", search_path());
    command
}

/// The same, through `sudo` when this process is not root.
pub(crate) fn root_command(program: impl AsRef<OsStr>) -> Command {
    if geteuid().is_root() {
        return command(program);
    }
    let mut sudo = command("sudo");
    sudo.args(["--preserve-env", "env"]);
    sudo.arg(format!(
        "PATH={}",
        std::env::var("PATH").unwrap_or_default()
    ));
    sudo.arg(program);
    sudo
}

/// This program again, as root.
pub(crate) fn myself_as_root() -> Result<Command> {
    Ok(root_command(myself()?))
}

/// This program's file; a newer build in its place serves as well.
pub(crate) fn myself() -> Result<PathBuf> {
    let file = std::env::current_exe().context("find this program's file")?;
    match file
        .to_str()
        .and_then(|name| name.strip_suffix(" (deleted)"))
    {
        Some(replaced) => Ok(PathBuf::from(replaced)),
        None => Ok(file),
    }
}

/// The PATH of this process with the system folders for administrators behind it.
pub(crate) fn search_path() -> String {
    format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    )
}

/// Runs to the end with the output of this process; an exit code other than 0 is an error.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("run {}", describe(command)))?;
    if !status.success() {
        bail!("{} ended with {}", describe(command), explain(status));
    }
    Ok(())
}

/// Runs to the end in silence and returns stdout; stderr becomes part of the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = capture(command)?;
    if !output.status.success() {
        bail!(
            "{} ended with {}: {}",
            describe(command),
            explain(output.status),
            tail(&String::from_utf8_lossy(&output.stderr), 5)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end in silence, whatever the exit code.
pub(crate) fn capture(command: &mut Command) -> Result<Output> {
    command
        .output()
        .with_context(|| format!("run {}", describe(command)))
}

/// Like [`capture`], but kills the program when `deadline` has passed. `None` then.
pub(crate) fn capture_within(command: &mut Command, deadline: Duration) -> Result<Option<Output>> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command
        .spawn()
        .with_context(|| format!("run {}", describe(command)))?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(deadline) {
        Ok(output) => Ok(Some(
            output.with_context(|| format!("run {}", describe(command)))?,
        )),
        Err(_) => {
            // It may have ended between the two lines; then there is nothing to kill.
            let _ = kill(pid, Signal::SIGKILL);
            Ok(None)
        }
    }
}

/// The command line as a person would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let _ = write!(line, " {}", argument.to_string_lossy());
    }
    line
}

/// The last `count` lines of `text`.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn explain(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_named_with_its_code_and_last_output() {
        let error = output(command("sh").args(["-c", "echo why >&2; exit 7"])).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("exit code 7") && text.contains("why"),
            "{text}"
        );
    }

    #[test]
    fn a_program_past_its_deadline_is_killed() {
        let run = capture_within(command("sleep").arg("60"), Duration::from_millis(50));
        assert!(run.unwrap().is_none());
    }

    #[test]
    fn the_tail_of_a_short_text_is_the_text() {
        assert_eq!(tail("a\nb\n", 5), "a\nb");
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
    }
}
