//! Control groups named after a stack: tests put pods below `/<netns name>` in each hierarchy.
//!
//! Invariant: only groups of exactly that name, and what is below them, are looked at or removed.
//! Failure: a group that still holds a process cannot be removed and is named.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Leak;
use crate::stack::Layout;

const TOP: &str = "/sys/fs/cgroup";

/// The groups that are there.
pub(super) fn find(layout: &Layout) -> Result<Vec<Leak>> {
    Ok(groups(layout)
        .iter()
        .map(|path| Leak::new("cgroup", path.display().to_string()))
        .collect())
}

/// Removes them, the innermost first.
pub(crate) fn remove(layout: &Layout) -> Result<()> {
    groups(layout).iter().try_for_each(|path| remove_tree(path))
}

fn groups(layout: &Layout) -> Vec<PathBuf> {
    let name = layout.netns_name();
    // Version 2 is one hierarchy at the top, version 1 has a folder for each controller.
    let controllers = fs::read_dir(TOP)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = controllers
        .chain([PathBuf::from(TOP)])
        .map(|top| top.join(&name))
        .filter(|path| path.is_dir())
        .collect();
    // A controller may be mounted under two names.
    let mut seen = Vec::new();
    paths.retain(|path| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    });
    paths
}

fn remove_tree(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path)
        .with_context(|| format!("list {}", path.display()))?
        .flatten()
    {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path).with_context(|| format!("remove {}", path.display()))
}
