//! The control group that holds everything of one node.
//!
//! Invariant: it is called as the node's network namespace and is at the top of each hierarchy;
//! kubelet makes its own groups below it.
//! Failure: a hierarchy that takes no group is named.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::stack::Layout;

const TOP: &str = "/sys/fs/cgroup";
/// Version 1 refuses processes in a group where these are empty.
const INHERITED: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];
/// What kubelet wants on version 2.
const DELEGATED: &str = "+cpu +cpuset +io +memory +pids";

/// Makes the group in every hierarchy.
pub(crate) fn create(layout: &Layout) -> Result<()> {
    let name = layout.netns_name();
    if Path::new(TOP).join("cgroup.controllers").exists() {
        let group = Path::new(TOP).join(&name);
        fs::create_dir(&group).with_context(|| format!("create {}", group.display()))?;
        for parent in [Path::new(TOP), &group] {
            fs::write(parent.join("cgroup.subtree_control"), DELEGATED)
                .with_context(|| format!("delegate controllers in {}", parent.display()))?;
        }
        return Ok(());
    }
    for entry in fs::read_dir(TOP).with_context(|| format!("list {TOP}"))? {
        let hierarchy = entry?.path();
        // Version 2 beside version 1 has no controllers; links lead to a hierarchy that has its
        // turn.
        if hierarchy.is_symlink() || hierarchy.join("cgroup.controllers").exists() {
            continue;
        }
        let group = hierarchy.join(&name);
        fs::create_dir(&group).with_context(|| format!("create {}", group.display()))?;
        for file in INHERITED {
            if let Ok(value) = fs::read_to_string(hierarchy.join(file)) {
                fs::write(group.join(file), value.trim())
                    .with_context(|| format!("set {file} of {}", group.display()))?;
            }
        }
    }
    Ok(())
}
