//! The table of running programs, and the thread that reaps ended ones.
//!
//! Invariant: a process id is in the table from before its program can end until after it was
//! collected, and it is signalled only while it exists: never another process that got the same
//! number.
//! Failure: a program that ignores SIGTERM is killed; one that cannot be started is reported.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use crate::run;
use crate::stack::{Layout, Program};

/// How long the kernel may take to end a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// The programs of one stack.
#[derive(Debug)]
pub(crate) struct Children {
    layout: Layout,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<Program, Pid>,
    ended: BTreeMap<Program, String>,
}

impl Children {
    /// An empty table.
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            layout,
            table: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The programs that run, with their process ids.
    pub(crate) fn running(&self) -> Vec<(Program, i32)> {
        self.lock()
            .running
            .iter()
            .map(|(program, pid)| (*program, pid.as_raw()))
            .collect()
    }

    /// Starts a program that does not run.
    pub(crate) fn start(&self, program: Program) -> Result<()> {
        let mut table = self.lock();
        if let Some(pid) = table.running.get(&program) {
            bail!("{program} runs already, as process {pid}");
        }
        let log = self.layout.log(program.name());
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .context("open its log")?;
        let pid = self
            .spawn(program, log)
            .with_context(|| format!("start {program}"))?;
        fs::write(self.layout.pid_file(program.name()), format!("{pid}\n"))?;
        table.ended.remove(&program);
        table.running.insert(program, pid);
        self.changed.notify_all();
        Ok(())
    }

    /// Stops a program if it runs; returns when it has been collected.
    pub(crate) fn stop(&self, program: Program, grace: Duration) -> Result<()> {
        for (signal, timeout) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, KILL_TIMEOUT)] {
            let table = self.lock();
            let Some(pid) = table.running.get(&program) else {
                return Ok(());
            };
            kill(*pid, signal).with_context(|| format!("send {signal} to {program}"))?;
            drop(table);
            if self.wait_for_end(program, timeout).is_some() {
                return Ok(());
            }
        }
        bail!("{program} did not end after SIGKILL")
    }

    /// How the program ended, or `None` if it still runs after `time`.
    pub(crate) fn wait_for_end(&self, program: Program, time: Duration) -> Option<String> {
        let deadline = Instant::now() + time;
        let mut table = self.lock();
        while table.running.contains_key(&program) {
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.changed.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(
            table
                .ended
                .get(&program)
                .cloned()
                .unwrap_or_else(|| "was never started".to_owned()),
        )
    }

    /// Reaps children and orphans until the process ends.
    pub(crate) fn collect(&self) {
        loop {
            // First look, then collect under the lock: see the invariant.
            match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) => self.bury(status),
                Err(Errno::ECHILD) => self.wait_for_a_child(),
                Err(_) => {}
            }
        }
    }

    fn spawn(&self, program: Program, log: File) -> Result<Pid> {
        // Works even when a newer build has replaced our file.
        let mut command = run::command(Path::new("/proc/self/exe"));
        command
            .arg0("vmlet-stack-exec")
            .arg("exec")
            .arg("--dir")
            .arg(self.layout.dir());
        command
            .arg(program.name())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log));
        let child = command.spawn()?;
        Ok(Pid::from_raw(i32::try_from(child.id())?))
    }

    fn bury(&self, status: WaitStatus) {
        let Some(pid) = status.pid() else { return };
        let mut table = self.lock();
        if waitpid(pid, None).is_err() {
            return;
        }
        let program = table
            .running
            .iter()
            .find(|(_, running)| **running == pid)
            .map(|(program, _)| *program);
        if let Some(program) = program {
            table.running.remove(&program);
            table.ended.insert(program, describe(status));
            // This number must not be signalled any more.
            let _ = fs::remove_file(self.layout.pid_file(program.name()));
        }
        self.changed.notify_all();
    }

    fn wait_for_a_child(&self) {
        let mut table = self.lock();
        while table.running.is_empty() {
            table = self
                .changed
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe(status: WaitStatus) -> String {
    match status {
        WaitStatus::Exited(_, code) => format!("ended with exit code {code}"),
        WaitStatus::Signaled(_, signal, _) => format!("was ended by {signal}"),
        other => format!("ended: {other:?}"),
    }
}
