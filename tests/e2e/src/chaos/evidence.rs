//! Logs and objects of a failed run, which are kept when the cluster is taken down.
//!
//! Invariant: one folder for each seed; an older one of the same seed is replaced.
//! Failure: what cannot be kept is left out; a finding must not be hidden by another error.

use std::fs;
use std::io;
use std::path::Path;

use crate::Cluster;
use crate::kept::tree;
use crate::stack::programs;

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
    for kind in ["vm", "pods", "virtualmachinetasks", "events", "leases"] {
        let reported = cluster.kubectl(&["get", kind, "-A", "-o", "yaml"]);
        let reported = reported.unwrap_or_else(|error| format!("{error:#}"));
        fs::write(dir.join(format!("{kind}.yaml")), reported)?;
    }
    let state = cluster.stack().dir();
    for file in ["vmlet.db", "vmlet.db-wal"] {
        // Gone or new at any moment.
        fs::copy(state.join("state").join(file), dir.join(file)).ok();
    }
    tree(&state.join("log"), &dir.join("log"))?;
    tree(&state.join("logs/pods"), &dir.join("pods"))
}
