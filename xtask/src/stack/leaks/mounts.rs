//! Mounts that a stack has left behind: below its directory, and elsewhere of what is in it.
//!
//! Invariant: a mount counts as the stack's by its place, or by what it shows: a file or folder below the
//! stack's directory, its network namespace, or that of one of its pods.
//! Failure: none beyond a table of mounts that cannot be read.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Leak, Pods};
use crate::stack::cluster::KUBELET_ROOT;
use crate::stack::mounts::{self, Mount, NAMESPACE};
use crate::stack::{Layout, Record};

/// Everything mounted of a stack.
pub(super) fn find(
    layout: &Layout,
    record: &Record,
    supervisor: Option<i32>,
    pods: Pods,
) -> Result<Vec<Leak>> {
    let mut points = mounts::below(layout.dir())?;
    points.extend(outside(layout)?);
    // A cluster's node has a mount namespace of its own, which ends with its last process.
    if record.node.is_some()
        && let Some(pid) = supervisor
    {
        let seen = mounts::of_process(pid)?
            .into_iter()
            .map(|mount| mount.point);
        points.extend(seen.filter(|point| is_of_node(layout, point, pods)));
    }
    let points = points.iter();
    Ok(points
        .map(|point| Leak::new("mount", point.display().to_string()))
        .collect())
}

/// Where this process sees what is the stack's, outside of the stack's directory.
pub(crate) fn outside(layout: &Layout) -> Result<Vec<PathBuf>> {
    Ok(elsewhere(
        &mounts::all()?,
        layout.dir(),
        &layout.netns_path(),
    ))
}

fn is_of_node(layout: &Layout, point: &Path, pods: Pods) -> bool {
    let kubelet = Path::new(KUBELET_ROOT);
    let of_kubelet = point.starts_with(kubelet) && point != kubelet;
    // containerd mounts the folder itself, to share it.
    let netns = Path::new("/run/netns");
    let of_runtime =
        point.starts_with("/run/containerd") || point.starts_with(netns) && point != netns;
    let below = of_runtime || point.starts_with(layout.dir());
    let own = layout.netns_name();
    let is_own = point.file_name().is_some_and(|name| *name == *own);
    !is_own && (below || of_kubelet && pods == Pods::Gone)
}

/// `netns`: where the stack's network namespace is mounted.
fn elsewhere(all: &[Mount], dir: &Path, netns: &Path) -> Vec<PathBuf> {
    let is_own_place = |mount: &Mount| mount.point.starts_with(dir) || mount.point == netns;
    let namespaces: Vec<_> = all
        .iter()
        .filter(|mount| mount.kind == NAMESPACE && is_own_place(mount))
        .map(|mount| &mount.root)
        .collect();
    let source = mounts::source(all, dir);
    let others = all.iter().filter(|mount| !is_own_place(mount));
    let ours = others.filter(|mount| {
        let shows_namespace = mount.kind == NAMESPACE && namespaces.contains(&&mount.root);
        shows_namespace || source.as_ref().is_some_and(|source| source.holds(mount))
    });
    ours.map(|mount| mount.point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(table: &str) -> Vec<PathBuf> {
        let dir = Path::new("/tmp/a/s");
        elsewhere(&mounts::parse(table), dir, Path::new("/run/netns/own"))
    }

    #[test]
    fn what_is_in_the_directory_is_found_wherever_it_is_mounted() {
        let table = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 27 254:0 /tmp/a/s/state /mnt/state rw - ext4 /dev/vda rw\n\
            31 27 254:0 /tmp/a/s/state//deleted /mnt/gone rw - ext4 /dev/vda rw\n\
            32 27 254:0 /tmp/a/sibling /mnt/sibling rw - ext4 /dev/vda rw\n\
            33 27 254:1 /tmp/a/s/state /mnt/device rw - ext4 /dev/vdb rw\n\
            34 27 254:0 /tmp/a/s/state /tmp/a/s/inside rw - ext4 /dev/vda rw\n";
        assert_eq!(
            places(table),
            [Path::new("/mnt/state"), Path::new("/mnt/gone")]
        );
    }

    #[test]
    fn the_directory_may_be_on_a_file_system_that_is_mounted_itself() {
        let table = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
            28 27 254:1 /volume /tmp rw - ext4 /dev/vdb rw\n\
            30 27 254:1 /volume/a/s/x /mnt/ours rw - ext4 /dev/vdb rw\n\
            31 27 254:1 /a/s/x /mnt/other rw - ext4 /dev/vdb rw\n";
        assert_eq!(places(table), [Path::new("/mnt/ours")]);
    }

    #[test]
    fn a_second_mount_of_a_namespace_is_found() {
        let table = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
            40 27 0:4 net:[1] /run/netns/own rw - nsfs nsfs rw\n\
            41 27 0:4 net:[2] /tmp/a/s/netns/pod rw - nsfs nsfs rw\n\
            42 27 0:4 net:[1] /mnt/one rw - nsfs nsfs rw\n\
            43 27 0:4 net:[2] /mnt/two rw - nsfs nsfs rw\n\
            44 27 0:4 net:[3] /run/netns/other rw - nsfs nsfs rw\n";
        assert_eq!(
            places(table),
            [Path::new("/mnt/one"), Path::new("/mnt/two")]
        );
    }
}
