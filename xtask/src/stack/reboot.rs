//! The effect of a power cut on a node of a cluster, and the boot after it.
//!
//! Invariant: no program gets the chance to say good-bye; files stay, and nothing else: no process,
//! mount, namespace, link or cgroup, and nothing in `/run`. The boot has another id.
//! Failure: a boot that fails leaves a dead node, which `down` takes away.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::bring_up::found;
use super::control::{self, Request};
use super::take_down::{end_supervisor, kill_leftovers};
use super::{Layout, Record, cluster, leaks, netns};

/// Folders that are empty after a boot.
const VOLATILE: &[&str] = &["host/run", "libvirt/run", "libvirt/sock", "netns", "run"];

/// Cuts a node's power and boots it; returns when its programs answer.
pub(crate) fn reboot(layout: &Layout) -> Result<()> {
    let mut record = Record::read(layout)?;
    let node = record
        .node
        .clone()
        .context("only the nodes of clusters can be rebooted")?;
    cut_power(layout).context("cut the power")?;
    cluster::new_boot_id(layout)?;
    found(layout, &mut record, &node.address())?;
    cluster::rejoin(&node)?;
    cluster::boot(layout, &node)
}

fn cut_power(layout: &Layout) -> Result<()> {
    let supervisor = control::call(layout, &Request::Status)?.supervisor;
    kill_leftovers(layout, Some(supervisor))?;
    end_supervisor(layout)?;
    leaks::cgroups::remove(layout)?;
    netns::delete(layout)?;
    for folder in VOLATILE {
        empty(&layout.path(folder))?;
    }
    fs::remove_file(layout.supervisor_socket()).context("remove the supervisor's socket")?;
    for entry in fs::read_dir(layout.dir()).context("list the pid files")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pid") {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes what is in a folder, but not the folder: its mode stays.
fn empty(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry?;
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        removed.with_context(|| format!("remove {}", entry.path().display()))?;
    }
    Ok(())
}
