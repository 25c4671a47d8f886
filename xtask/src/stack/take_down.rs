//! Stops a stack: stops its programs, looks for leaks, then removes its files.
//!
//! Invariant: leaks are named before anything is cleaned up; afterwards nothing of the stack is
//! left, leaks or not.
//! Failure: a step of the clean-up that is refused is an error, after all other steps were tried.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::control::{self, Request};
use super::leaks::{self, Leak, processes};
use super::{Layout, Program, Record, cluster, mounts, netns};

/// How long killed processes may take to disappear.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logs {
    /// Removes DIR and everything below it.
    Remove,
    /// DIR/log and DIR/logs stay.
    Keep,
}

/// Stops and removes a stack, with all nodes of its cluster. Returns what was found leaked.
pub(crate) fn take_down(layout: &Layout, logs: Logs) -> Result<Vec<Leak>> {
    let mut found = Vec::new();
    for worker in cluster::workers(layout) {
        // One that was about to be created has nothing to take down yet.
        if let Ok(worker) = Layout::existing(&worker)
            && Record::read(&worker).is_ok()
        {
            found.extend(take_down_node(&worker, logs)?);
        }
    }
    found.extend(take_down_node(layout, logs)?);
    Ok(found)
}

fn take_down_node(layout: &Layout, logs: Logs) -> Result<Vec<Leak>> {
    let record = Record::read(layout)?;
    let supervisor = control::call(layout, &Request::Status)
        .map(|reply| reply.supervisor)
        .ok();
    let left_running = empty(layout, &record, supervisor.is_some());
    // libvirtd must run to be queried for domains, and to be the parent of nothing.
    let mut rest = record.programs();
    rest.retain(|program| *program != Program::Libvirtd);
    if supervisor.is_some() {
        rest.iter().rev().for_each(|program| stop(layout, *program));
    }
    let pods = if left_running {
        leaks::Pods::Abandoned
    } else {
        leaks::Pods::Gone
    };
    let found = leaks::find(layout, &record, supervisor, pods);

    let mut trouble = Vec::new();
    let mut attempt = |step: &str, outcome: Result<()>| {
        if let Err(error) = outcome {
            trouble.push(format!("{step}: {error:#}"));
        }
    };
    if supervisor.is_some() {
        stop(layout, Program::Libvirtd);
    }
    attempt("kill processes", kill_leftovers(layout, supervisor));
    attempt("remove cgroups", leaks::cgroups::remove(layout));
    attempt("unmount", unmount(layout));
    if supervisor.is_some() {
        attempt("end the supervisor", end_supervisor(layout));
    }
    attempt("delete the network namespace", netns::delete(layout));
    attempt("remove files", remove_files(layout.dir(), logs));
    if !trouble.is_empty() {
        bail!(
            "clean-up of {}: {}",
            layout.dir().display(),
            trouble.join("; ")
        );
    }
    Ok(found)
}

/// Removes the pods of a cluster's node, once no new ones are created. True if there were any.
fn empty(layout: &Layout, record: &Record, supervised: bool) -> bool {
    let Some(node) = &record.node else {
        return false;
    };
    if supervised {
        let makers = [
            Program::VmletController,
            Program::VmletAgent,
            Program::Kubelet,
            Program::KubeControllerManager,
            Program::KubeScheduler,
            Program::VmletCriproxy,
        ];
        let own = record.programs();
        makers
            .iter()
            .filter(|program| own.contains(program))
            .for_each(|program| stop(layout, *program));
    }
    let drained = cluster::drain(layout, node);
    for sandbox in &drained.found {
        eprintln!("xtask: pod {sandbox} was still on {}", node.name());
    }
    for trouble in &drained.trouble {
        eprintln!("xtask: {trouble}");
    }
    !drained.found.is_empty() || !drained.trouble.is_empty()
}

/// A program that cannot be stopped shows up among the leaked processes.
fn stop(layout: &Layout, program: Program) {
    if let Err(error) = control::call(layout, &Request::Stop(program)) {
        eprintln!("xtask: stop {program}: {error:#}");
    }
}

/// Kills everything that belongs to a stack, less its supervisor, and waits until it no longer
/// exists.
pub(super) fn kill_leftovers(layout: &Layout, supervisor: Option<i32>) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = processes::owned(layout, supervisor)?;
        if left.is_empty() {
            return Ok(());
        }
        for process in &left {
            // It may have ended in the meantime.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        if Instant::now() > deadline {
            bail!("process {} does not end after SIGKILL", left[0].pid);
        }
        // The kernel needs a moment; there is no event for processes that are not our children.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Ends the supervisor and waits until it no longer exists.
pub(super) fn end_supervisor(layout: &Layout) -> Result<()> {
    let pid = control::call(layout, &Request::Quit)?.supervisor;
    let deadline = Instant::now() + TIMEOUT;
    while processes::is_alive(pid) {
        if Instant::now() > deadline {
            bail!("the supervisor, process {pid}, does not end");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}

fn unmount(layout: &Layout) -> Result<()> {
    let mut points = mounts::below(layout.dir())?;
    points.extend(leaks::mounts::outside(layout)?);
    // The last mounted first.
    for point in points.iter().rev() {
        umount2(point, MntFlags::MNT_DETACH)
            .with_context(|| format!("unmount {}", point.display()))?;
    }
    Ok(())
}

fn remove_files(dir: &Path, logs: Logs) -> Result<()> {
    if logs == Logs::Remove {
        return fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()));
    }
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        // Further nodes have kept theirs already.
        let name = entry.file_name();
        if name == "log" || name == "logs" || name.to_string_lossy().starts_with("node") {
            continue;
        }
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}
