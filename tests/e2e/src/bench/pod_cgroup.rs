//! A cgroup such as kubelet makes for a pod.
//!
//! Invariant: named after the stack's network namespace, so that `cargo xtask down` finds what is
//! left.
//! Failure: a hierarchy that takes no group is named.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// The hierarchies of version 1 that kubelet uses, as far as they matter here.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// What the tapmanager makes below a pod's group on version 2.
const LEAF: &str = "vmlet";

/// A group in every hierarchy, removed when dropped.
#[derive(Debug)]
pub struct PodCgroup {
    name: String,
    paths: Vec<PathBuf>,
}

impl PodCgroup {
    /// Makes `/NETNS/pod`.
    pub fn make(netns: &str) -> Result<Self> {
        let name = format!("/{netns}/pod");
        let root = Path::new(ROOT);
        let roots = if root.join("cgroup.controllers").exists() {
            vec![root.to_owned()]
        } else {
            CONTROLLERS.iter().map(|c| root.join(c)).collect()
        };
        let mut group = Self {
            paths: Vec::new(),
            name,
        };
        for root in roots.into_iter().filter(|root| root.is_dir()) {
            let path = root.join(group.name.trim_start_matches('/'));
            std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
            group.paths.push(path);
        }
        Ok(group)
    }

    /// The name, as kubelet gives it.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for PodCgroup {
    fn drop(&mut self) {
        for path in &self.paths {
            for group in [Some(path.join(LEAF).as_path()), Some(path), path.parent()] {
                // A group that is not there or not empty is found by `cargo xtask down`.
                let _ = group.map(std::fs::remove_dir);
            }
        }
    }
}
