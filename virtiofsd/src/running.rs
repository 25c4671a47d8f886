//! A server that runs, from outside.
//!
//! Invariant: a process that only has the number of the server that ended is not taken for it.
//! Failure: a server that has ended, or has not entered its namespaces.

use std::fs::{self, File};
use std::io;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

use crate::args::Server;

/// Field 22 of `/proc/PID/stat`, after the name in parentheses, which is the second.
const STARTED: usize = 22 - 3;

/// The mount namespace of a server; `None` when the server has ended.
pub(crate) fn namespace(server: &Server) -> Result<Option<File>> {
    let pid = server.pid;
    if !is_there(server)? {
        return Ok(None);
    }
    // It waits for the child that serves.
    let children = read(format!("/proc/{pid}/task/{pid}/children"))?;
    let Some(child) = children.as_deref().and_then(|text| text.split(' ').next()) else {
        return Ok(None);
    };
    if child.is_empty() {
        bail!("the server {pid} serves nothing yet");
    }
    let namespace = match File::open(format!("/proc/{child}/ns/mnt")) {
        Err(error) if is_gone(&error) => return Ok(None),
        opened => opened.context("open the mount namespace of the server")?,
    };
    // The number of the child was the server's when the server is still there.
    Ok(is_there(server)?.then_some(namespace))
}

/// Enters the namespace: its root and working directory are those of the server.
pub(crate) fn enter(namespace: &File) -> Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNS).context("enter the mount namespace of the server")
}

fn is_there(server: &Server) -> Result<bool> {
    let Some(stat) = read(format!("/proc/{}/stat", server.pid))? else {
        return Ok(false);
    };
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let started = fields.split_whitespace().nth(STARTED);
    Ok(started.and_then(|text| text.parse().ok()) == Some(server.started))
}

/// `None` when the process has ended.
fn read(path: String) -> Result<Option<String>> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error).context(path),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let pid = std::process::id();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields = stat.rsplit(')').next().unwrap();
        let started = fields.split_whitespace().nth(STARTED).unwrap();
        let started = started.parse().unwrap();
        assert!(is_there(&Server { pid, started }).unwrap());
        let other = Server {
            pid,
            started: started + 1,
        };
        assert!(!is_there(&other).unwrap());
        assert!(namespace(&other).unwrap().is_none());
    }
}
