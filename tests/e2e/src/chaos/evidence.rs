//! Logs and objects of a failed run, which are kept when the cluster is taken down.
//!
//! Invariant: one folder for each seed; an older one of the same seed is replaced.
//! Failure: what cannot be kept is left out; a finding must not be hidden by another error.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::kept::tree;
use crate::stack::programs;
use crate::{Cluster, program};

/// Of which objects are kept.
const KINDS: [&str; 12] = [
    "vm",
    "pods",
    "virtualmachinetasks",
    "vmsnap",
    "vmbackup",
    "vmbackupschedule",
    "vmg",
    "vmrs",
    "vmicache",
    "nodes",
    "events",
    "leases",
];

/// Copies logs and objects; returns where they are.
pub(super) fn keep(cluster: &Cluster, seed: u64) -> String {
    let Ok(built) = programs() else {
        return "no evidence kept".to_owned();
    };
    let target = built.parent().unwrap_or(&built);
    let dir = target.join("chaos").join(seed.to_string());
    match copy(cluster, &dir) {
        Ok(()) => format!("evidence in {}", dir.display()),
        Err(error) => format!("part of the evidence in {}: {error}", dir.display()),
    }
}

fn copy(cluster: &Cluster, dir: &Path) -> io::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    for kind in KINDS {
        let reported = cluster.kubectl(&["get", kind, "-A", "-o", "yaml"]);
        let reported = reported.unwrap_or_else(|error| format!("{error:#}"));
        fs::write(dir.join(format!("{kind}.yaml")), reported)?;
    }
    for (number, node) in cluster.nodes().enumerate() {
        let state = node.dir();
        let dir = dir.join(format!("node{}", number + 1));
        fs::create_dir_all(&dir)?;
        for file in ["vmlet.db", "vmlet.db-wal"] {
            // Gone or new at any moment.
            fs::copy(state.join("state").join(file), dir.join(file)).ok();
        }
        fs::write(dir.join("files"), files(&state.join("state/disks")))?;
        tree(&state.join("log"), &dir.join("log"))?;
        tree(&state.join("logs/pods"), &dir.join("pods"))?;
    }
    Ok(())
}

/// The names of all files below a folder, with their sizes.
fn files(folder: &Path) -> String {
    let mut list = Command::new("find");
    let listed = program::output(list.arg(folder).args(["-type", "f", "-printf", "%s %P\\n"]));
    listed.map_or_else(
        |error| format!("{error:#}"),
        |listed| String::from_utf8_lossy(&listed.stdout).into_owned(),
    )
}
