//! A running machine: started from the snapshot, found again, ended.
//!
//! Invariant: the owner of a `Machine` holds the lock of its system. A machine that a run was to
//! keep has a mark; one without a mark is left over from a run that was killed, and the next run
//! ends it.
//! Failure: a QEMU that ends at once is an error with the end of its log.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::agent::Agent;
use super::monitor::Monitor;
use super::steps::Step;
use super::{Os, PATIENCE, files, qemu, results, snapshot, steps, wait_for};
use crate::run;

const MARK: &str = "kept";
const PID: &str = "pid";
const LOG: &str = "qemu.log";

/// What becomes of a machine at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It ends.
    End,
    /// It stays for later runs, until `down`.
    Keep,
}

/// A running machine and the right to use it.
#[derive(Debug)]
pub(crate) struct Machine {
    os: Os,
    agent: Agent,
    _lock: Flock<File>,
}

impl Machine {
    /// Takes the machine that an earlier run kept, or starts one from the snapshot. The files of
    /// the folder are in it, at `/mnt/files`.
    pub(crate) fn take(os: Os, folder: Option<&Path>, stay: Stay) -> Result<Self> {
        let lock = lock(os)?;
        let run = os.run_folder();
        if is_kept(&run) {
            println!("machine: uses the {} that is up", os.name());
            let mut machine = Self::find(os, lock)?;
            machine.bring(folder)?;
            return Ok(machine);
        }
        end(&run)?;
        snapshot::ensure(os)?;
        let prepared = start(os).and_then(|()| {
            let mut machine = Self::find(os, lock)?;
            machine.set_clock()?;
            machine.bring(folder)?;
            if stay == Stay::Keep {
                fs::write(run.join(MARK), "").context("failed to mark the machine as kept")?;
            }
            Ok(machine)
        });
        if prepared.is_err() {
            // Its own error is the cause; the next run tries again to end what is left.
            let _ = end(&run);
        }
        prepared
    }

    fn find(os: Os, lock: Flock<File>) -> Result<Self> {
        let agent = Agent::connect(&os.run_folder().join(qemu::AGENT), PATIENCE)?;
        Ok(Self {
            os,
            agent,
            _lock: lock,
        })
    }

    fn bring(&mut self, folder: Option<&Path>) -> Result<()> {
        match folder {
            Some(folder) => files::bring(folder, &self.os.run_folder(), &mut self.agent),
            None => Ok(()),
        }
    }

    /// Runs steps and returns the exit code of the last one.
    pub(crate) fn steps(&mut self, steps: &[Step], deadline: Duration) -> Result<u8> {
        steps::run(&mut self.agent, steps, &self.os.run_folder(), deadline)
    }

    /// Fetches the journal and logs.
    pub(crate) fn collect(&mut self) -> Result<()> {
        results::collect(&mut self.agent, &self.os.run_folder()).context("results")
    }

    /// Ends the machine unless it is marked as one that stays.
    pub(crate) fn leave(self) -> Result<()> {
        let run = self.os.run_folder();
        if is_kept(&run) {
            println!("machine: the {} stays up", self.os.name());
            return Ok(());
        }
        end(&run)
    }

    /// Since the snapshot time has passed.
    fn set_clock(&mut self) -> Result<()> {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .context("failed to read the clock")?;
        let set = format!("date --utc --set=@{}", now.as_secs());
        self.agent.output(&set, PATIENCE).map(drop)
    }
}

/// Builds image and snapshot.
pub(crate) fn build(os: Os) -> Result<()> {
    let _lock = lock(os)?;
    end(&os.run_folder())?;
    snapshot::ensure(os)
}

/// Ends the machine, whether it is kept or left over. Returns whether there was one.
pub(crate) fn down(os: Os) -> Result<bool> {
    let _lock = lock(os)?;
    let run = os.run_folder();
    let there = pid(&run).is_some();
    end(&run)?;
    Ok(there)
}

fn lock(os: Os) -> Result<Flock<File>> {
    let folder = os.folder();
    fs::create_dir_all(&folder)
        .with_context(|| format!("failed to create {}", folder.display()))?;
    let file = File::create(folder.join("lock")).context("failed to open the lock")?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, error)) => Err(error)
            .with_context(|| format!("the machine {} is in use by another run", os.name())),
    }
}

fn is_kept(run: &Path) -> bool {
    run.join(MARK).exists() && pid(run).is_some()
}

/// The process of the machine in this folder. A number alone may be another process's by now.
fn pid(run: &Path) -> Option<Pid> {
    let number: i32 = fs::read_to_string(run.join(PID))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let folder = fs::read_link(format!("/proc/{number}/cwd")).ok()?;
    (folder == run.canonicalize().ok()?).then(|| Pid::from_raw(number))
}

fn start(os: Os) -> Result<()> {
    let run = os.run_folder();
    fresh_run(&run)?;
    overlay(&format!("../{}/{}", snapshot::FOLDER, qemu::DISK), &run)?;
    let mut command = qemu::load(&format!("../{}/{}", snapshot::FOLDER, snapshot::MEMORY));
    let mut child = spawn(&mut command, &run)?;
    let mut monitor = monitor(&run, &mut child)?;
    monitor.resume()
}

/// Makes the folder of a run an empty one: results of the last one are gone.
pub(super) fn fresh_run(run: &Path) -> Result<()> {
    if run.exists() {
        fs::remove_dir_all(run).with_context(|| format!("failed to empty {}", run.display()))?;
    }
    fs::create_dir_all(run).with_context(|| format!("failed to create {}", run.display()))
}

/// A disk that has what `backing` has, and takes what a run writes.
pub(super) fn overlay(backing: &str, run: &Path) -> Result<()> {
    let mut create = run::command("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", backing]);
    run::output(create.arg(qemu::DISK).current_dir(run)).map(drop)
}

/// Starts QEMU in the folder of a run. It does not end with the terminal of this process.
pub(super) fn spawn(command: &mut Command, run: &Path) -> Result<Child> {
    let log = File::create(run.join(LOG)).context("failed to create QEMU's log")?;
    let child = command
        .current_dir(run)
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("failed to start QEMU")?;
    fs::write(run.join(PID), format!("{}\n", child.id())).context("failed to write its pid")?;
    Ok(child)
}

/// QEMU's monitor, as soon as it is there.
pub(super) fn monitor(run: &Path, child: &mut Child) -> Result<Monitor> {
    let socket = run.join(qemu::MONITOR);
    wait_for("QEMU's monitor", PATIENCE, || {
        if let Some(status) = child.try_wait().context("failed to look after QEMU")? {
            let log = fs::read_to_string(run.join(LOG)).unwrap_or_default();
            bail!("QEMU ended with {status}: {}", run::tail(&log, 5));
        }
        Ok(socket.exists().then_some(()))
    })?;
    Monitor::connect(&socket)
}

/// Ends the machine of this folder and waits until it is gone.
pub(super) fn end(run: &Path) -> Result<()> {
    // A machine without a process left its mark behind when this host went down.
    let _ = fs::remove_file(run.join(MARK));
    let Some(process) = pid(run) else {
        return Ok(());
    };
    Monitor::connect(&run.join(qemu::MONITOR))?.quit()?;
    wait_for("QEMU ends", Duration::from_secs(60), || {
        // Only a child of this process is left as one to collect.
        let _ = nix::sys::wait::waitpid(process, Some(nix::sys::wait::WaitPidFlag::WNOHANG));
        Ok(kill(process, None).is_err().then_some(()))
    })
}
