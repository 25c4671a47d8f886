//! Runs the program of a job to its end or to its deadline.
//!
//! Invariant: at its deadline the program and all of its descendants are stopped before one of them is
//! killed, so that none starts another one meanwhile; then the stacks that it started are taken down,
//! whose supervisors have no parent in the run.
//! Failure: a stack that cannot be taken down is part of the text about the end.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{run, stack};

/// How many command lines a text has.
const MOST_LINES: usize = 20;

/// How a program ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself.
    Exited(ExitStatus),
    /// At its deadline.
    Killed {
        /// The command lines of its descendants, one of which may be what it waited for, and what
        /// became of its stacks.
        remains: String,
    },
}

/// Runs a command; `stacks` is the list of the stacks that it starts, unless these stay after its end.
pub(super) fn end_within(
    command: &mut Command,
    deadline: Duration,
    stacks: Option<&Path>,
) -> Result<End> {
    let line = run::describe(command);
    let mut child = command.spawn().with_context(|| format!("run {line}"))?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (sender, receiver) = mpsc::channel();
    let ended = std::thread::scope(|scope| {
        scope.spawn(move || sender.send(child.wait()));
        match receiver.recv_timeout(deadline) {
            Ok(status) => Ok(status),
            Err(_) => Err(kill_all(pid)),
        }
    });
    match ended {
        Ok(status) => status
            .map(End::Exited)
            .with_context(|| format!("wait for {line}")),
        Err(mut remains) => {
            for text in stacks.map(stack::take_down_list).unwrap_or_default() {
                remains = format!("{remains}\n{text}");
            }
            Ok(End::Killed { remains })
        }
    }
}

/// Kills a process and its descendants; returns the command lines of these.
fn kill_all(pid: Pid) -> String {
    let mut all = vec![pid];
    let mut stopped = 0;
    while let Some(next) = all.get(stopped).copied() {
        signal(next, Signal::SIGSTOP);
        all.extend(children(next));
        stopped += 1;
    }
    let lines = all.iter().skip(1).take(MOST_LINES);
    let lines = lines.filter_map(|child| command_line(*child));
    let lines: Vec<_> = lines.map(|line| format!("  {line}")).collect();
    for pid in &all {
        signal(*pid, Signal::SIGKILL);
    }
    all.into_iter().for_each(end_served);
    lines.join("\n")
}

/// Ends the file systems that a process served to itself (`testfs::StrictDisk`): it would wait for their replies
/// and not end.
fn end_served(pid: Pid) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mark = format!("/strict-{pid}-");
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| place.contains(&mark)) {
        let mut umount = run::root_command("umount");
        if let Err(error) = run::check(umount.args(["-f", "-l", place])) {
            eprintln!("{error:#}");
        }
    }
}

/// It may have ended before; then there is nothing to do.
fn signal(pid: Pid, signal: Signal) {
    if kill(pid, signal) == Err(Errno::EPERM) {
        let number = format!("-{}", signal as i32);
        let mut kill = run::root_command("kill");
        if let Err(error) = run::check(kill.arg(number).arg(pid.to_string())) {
            eprintln!("{error:#}");
        }
    }
}

fn children(pid: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers: Vec<i32> = lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            numbers.collect::<Vec<_>>()
        })
        .collect();
    numbers.into_iter().map(Pid::from_raw).collect()
}

fn command_line(pid: Pid) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    Some(line.replace('\0', " ").trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn a_command_ends_by_itself_or_is_killed_at_its_deadline() {
        let mut sh = run::command("sh");
        let long = Duration::from_secs(1200);
        let ended = end_within(sh.args(["-c", "exit 3"]), long, None).unwrap();
        assert!(matches!(ended, End::Exited(status) if status.code() == Some(3)));
        let mut sleep = run::command("sleep");
        let ended = end_within(sleep.arg("infinity"), Duration::from_millis(10), None);
        assert!(matches!(ended.unwrap(), End::Killed { .. }));
    }

    /// What outlives the command keeps the other end of the pipe open.
    #[test]
    fn what_a_command_started_is_killed_with_it() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut sh = run::command("sh");
        sh.args(["-c", "sh -c 'echo; sleep infinity; :' & sleep infinity; :"]);
        let mut child = sh.stdout(writer).spawn().unwrap();
        drop(sh);
        let mut lines = BufReader::new(reader).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "");
        kill_all(Pid::from_raw(i32::try_from(child.id()).unwrap()));
        child.wait().unwrap();
        assert!(lines.next().is_none());
    }

    #[test]
    fn what_a_process_waits_for_is_named() {
        let mut child = run::command("sleep").arg("601").spawn().unwrap();
        let mut lines = children(Pid::this()).into_iter().filter_map(command_line);
        assert!(lines.any(|line| line == "sleep 601"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
