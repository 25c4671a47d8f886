//! Programs of the guest that run before its file systems are frozen, and after they are thawed.
//!
//! They are those of the QEMU guest agent, which software that can prepare itself for a freeze has already:
//!
//! ```text
//! /etc/qemu/fsfreeze-hook                 the program that the QEMU guest agent runs; where there is none,
//! /etc/qemu/fsfreeze-hook.d/10-database   each program here, in the order of their names
//! /etc/qemu-ga/…                          the same, in distributions that have it there
//! ```
//!
//! Invariant: none runs for longer than it may; it and what it has started are killed then.
//! Failure: a sentence with the program; one of a thaw goes to standard error, and the next program runs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::command::PATH;

/// Where the programs of the QEMU guest agent are.
const FOLDERS: [&str; 2] = ["/etc/qemu", "/etc/qemu-ga"];

/// The program in such a folder; with `.d` a folder of them.
const NAME: &str = "fsfreeze-hook";

/// Files that editors and package managers leave beside others.
const LEFTOVERS: [&str; 9] = [
    "~",
    ".bak",
    ".orig",
    ".sample",
    ".swp",
    ".rpmnew",
    ".rpmorig",
    ".rpmsave",
    ".dpkg-dist",
];

/// Time between two looks whether a program may go on.
const LOOK: Duration = Duration::from_millis(100);

/// Time for a program after the thaw.
const THAW: Duration = Duration::from_secs(10);

/// Time for the kernel to end what was killed.
const END: Duration = Duration::from_secs(1);

/// The programs of a guest.
#[derive(Debug, Clone)]
pub(crate) struct Hooks {
    folders: Vec<PathBuf>,
}

/// When a program is run.
#[derive(Debug, Clone, Copy)]
enum Moment {
    Freeze,
    Thaw,
}

impl Hooks {
    /// Those of the guest.
    pub(crate) fn of_guest() -> Self {
        Self {
            folders: FOLDERS.map(PathBuf::from).to_vec(),
        }
    }

    /// Those in a folder.
    pub(crate) fn below(folder: PathBuf) -> Self {
        Self {
            folders: vec![folder],
        }
    }

    /// The programs in their order: those of the first folder that has some.
    pub(crate) fn programs(&self) -> Vec<PathBuf> {
        let mut all = self.folders.iter().map(|folder| programs_in(folder));
        all.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Runs all of them after the thaw of a freeze that is not known to this process.
    pub(crate) fn thaw_all(&self) {
        thaw(&self.programs());
    }
}

/// Runs a program before the freeze; an error when it fails, does not end before `until`, or may not go on.
pub(crate) fn freeze(
    program: &Path,
    until: Instant,
    goes_on: impl Fn() -> bool,
) -> Result<(), String> {
    run(program, Moment::Freeze, until, goes_on)
}

/// Runs programs after the thaw, the last one first.
pub(crate) fn thaw(programs: &[PathBuf]) {
    for program in programs.iter().rev() {
        if let Err(error) = run(program, Moment::Thaw, Instant::now() + THAW, || true) {
            eprintln!("vmlet-guest: {error}");
        }
    }
}

impl Moment {
    /// The argument of a program.
    const fn word(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
        }
    }
}

fn programs_in(folder: &Path) -> Vec<PathBuf> {
    let program = folder.join(NAME);
    if is_program(&program) {
        return vec![program];
    }
    let Ok(entries) = fs::read_dir(folder.join(format!("{NAME}.d"))) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<_> = paths
        .filter(|path| path.file_name().is_some_and(is_name) && is_program(path))
        .collect();
    found.sort();
    found
}

fn is_name(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    !name.starts_with('.') && !LEFTOVERS.iter().any(|end| name.ends_with(end))
}

fn is_program(path: &Path) -> bool {
    let found = fs::metadata(path);
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn run(
    program: &Path,
    moment: Moment,
    until: Instant,
    goes_on: impl Fn() -> bool,
) -> Result<(), String> {
    let word = moment.word();
    let name = program.display();
    let failed = |error: std::io::Error| format!("failed to run {name} {word}: {error}");
    let mut child = start(program, word).map_err(failed)?;
    let group = Pid::from_raw(child.id().cast_signed());
    let ended = match await_end(group) {
        Ok(ended) => ended,
        Err(error) => {
            kill(&mut child, group);
            return Err(failed(error));
        }
    };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !goes_on() {
            kill(&mut child, group);
            return Err(format!("{name} {word} did not end in time, and was killed"));
        }
        match ended.recv_timeout(left.min(LOOK)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} {word} failed: {status}")),
        Err(error) => Err(failed(error)),
    }
}

fn start(program: &Path, word: &str) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.arg(word).env_clear().env("PATH", PATH);
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn()
}

/// What is sent to when a process has ended; it is not reaped, so that its number stays its own.
fn await_end(process: Pid) -> std::io::Result<Receiver<()>> {
    let (ends, ended) = mpsc::channel();
    let wait = move || {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(process), flags) == Err(Errno::EINTR) {}
        // No one waits for one that was killed.
        let _ = ends.send(());
    };
    thread::Builder::new().spawn(wait)?;
    Ok(ended)
}

/// Kills a program with what it has started.
fn kill(child: &mut Child, group: Pid) {
    // It may have ended just now.
    let _ = killpg(group, Signal::SIGKILL);
    // One that a disk keeps ends later, and is reaped with the agent.
    if let Ok(ended) = await_end(group)
        && ended.recv_timeout(END).is_ok()
    {
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn programs_are_those_of_the_qemu_guest_agent() {
        let folder = tempfile::tempdir().unwrap();
        let hooks = Hooks {
            folders: vec![folder.path().join("absent"), folder.path().to_owned()],
        };
        assert!(hooks.programs().is_empty());
        let scripts = folder.path().join("fsfreeze-hook.d");
        fs::create_dir(&scripts).unwrap();
        for name in ["20-b", "10-a", ".hidden", "10-a~", "a.rpmsave"] {
            program(&scripts.join(name), 0o755);
        }
        program(&scripts.join("30-c"), 0o644);
        fs::create_dir(scripts.join("40-d")).unwrap();
        let expected = ["10-a", "20-b"].map(|name| scripts.join(name));
        assert_eq!(hooks.programs(), expected);
        let own = folder.path().join("fsfreeze-hook");
        program(&own, 0o644);
        assert_eq!(hooks.programs(), expected, "it is no program");
        program(&own, 0o755);
        assert_eq!(hooks.programs(), [own]);
    }
}
