//! Control groups named after a stack: tests put pods below `/<netns name>` in each hierarchy,
//! kubelet has its own there.
//!
//! Invariant: only groups of exactly that name, and what is below them, are checked or removed.
//! Failure: a group that still holds a process cannot be removed and is named.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Leak, Pods};
use crate::stack::{Layout, Record};

const TOP: &str = "/sys/fs/cgroup";
/// How long the kernel may take to notice that a group is empty.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The groups that are there. On a cluster's node they are kubelet's, down to those of pods.
/// Kubelet removes those with all that is in them: what is in them now is a leak, unless kubelet
/// was stopped before its time.
pub(super) fn find(layout: &Layout, record: &Record, pods: Pods) -> Result<Vec<Leak>> {
    let mut groups = groups(layout);
    if record.node.is_some() {
        groups = groups
            .iter()
            .flat_map(|group| below(group))
            .filter(|group| pods == Pods::Gone && group.parent().is_some_and(is_pod))
            .collect();
    }
    Ok(groups
        .iter()
        .map(|path| Leak::new("cgroup", path.display().to_string()))
        .collect())
}

/// The processes in the groups.
pub(super) fn processes(layout: &Layout) -> Vec<i32> {
    let tops = groups(layout);
    let groups = tops.iter().flat_map(|top| below(top)).chain(tops.clone());
    groups
        .filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Whether kubelet made the group for one pod.
fn is_pod(group: &Path) -> bool {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("pod") && group.ancestors().any(|above| above.ends_with("kubepods"))
}

/// All groups below one.
fn below(group: &Path) -> Vec<PathBuf> {
    let children = fs::read_dir(group).into_iter().flatten().flatten();
    let children = children.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    children
        .flat_map(|child| [vec![child.path()], below(&child.path())].concat())
        .collect()
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
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match fs::remove_dir(path) {
            // Its last process is dead but not collected.
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            other => return other.with_context(|| format!("remove {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_runtimes_differ_from_those_of_kubelet() {
        let pod = Path::new("/sys/fs/cgroup/cpu/vmlet-0/kubepods/burstable/pod1234");
        assert!(is_pod(pod));
        assert!(!is_pod(pod.parent().unwrap()));
        assert!(!is_pod(&pod.join("0123")));
        assert!(
            !is_pod(Path::new("/sys/fs/cgroup/cpu/vmlet-0/pod1234")),
            "no kubelet made it"
        );
    }

    #[test]
    fn all_groups_below_one_are_found() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("a/b")).unwrap();
        fs::write(top.path().join("a/tasks"), "").unwrap();
        assert_eq!(
            below(top.path()),
            [top.path().join("a"), top.path().join("a/b")]
        );
    }
}
