//! Files that belong to pods, VMs or their addresses.
//!
//! Invariant: images, databases and logs are not leaks; they go with the directory. Nor are
//! kubelet's empty folders of pods, which it removes some time later, and downloads that the next pull
//! continues.
//! Failure: a folder that the daemon makes when it starts, and is absent although it was started, is
//! reported: what was in it may be elsewhere. Others that are absent count as empty.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Leak;
use crate::stack::{Layout, Program};

/// Folders whose every entry belongs to a pod.
const PER_POD: &[(&str, &str)] = &[
    ("network namespace", "netns"),
    ("file", "state/pods"),
    ("file", "state/console"),
    ("file", "state/seeds"),
    ("file", "state/processes"),
    ("device", "state/devices"),
    ("file", "state/network"),
    ("CNI cache entry", "cni/cache/results"),
    ("CNI cache entry", "host/cni/results"),
    ("network namespace", "host/run/netns"),
];

/// Those of them that the daemon makes when it starts.
const OF_DAEMON: [&str; 6] = [
    "state/pods",
    "state/console",
    "state/seeds",
    "state/processes",
    "state/devices",
    DOWNLOADS,
];

/// Where the daemon writes images until they are complete: `src/images/store.rs`.
const DOWNLOADS: &str = "state/images/partial";
/// How the names of a download and of its note end: `src/images/partial.rs`.
const PART: &str = "part";
const NOTE: &str = "json";

/// The file by which a program keeps a second one away; it stays.
const OWN_LOCK: &str = "lock";

/// What pods have left below the stack's directory.
pub(super) fn find(layout: &Layout) -> Result<Vec<Leak>> {
    let mut found = Vec::new();
    let own_netns = layout.netns_name();
    if layout.log(Program::Vmlet.name()).exists() {
        let absent = OF_DAEMON.map(|folder| layout.path(folder));
        let absent = absent.iter().filter(|folder| !folder.is_dir());
        found.extend(absent.map(|folder| Leak::new("lost", folder.display().to_string())));
    }
    for (kind, folder) in PER_POD {
        for path in entries(&layout.path(folder))? {
            let is = |own: &str| path.file_name().is_some_and(|name| name == own);
            if is(OWN_LOCK) || is(&own_netns) {
                continue;
            }
            found.push(Leak::new(kind, path.display().to_string()));
        }
    }
    let downloads = entries(&layout.path(DOWNLOADS))?.into_iter();
    let unfinished = downloads.filter(|path| !can_be_continued(path));
    found.extend(unfinished.map(|path| Leak::new("download", path.display().to_string())));
    for network in entries(&layout.path("cni/ipam"))? {
        for path in entries(&network)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Beside the leases lie the plugin's own lock and its last address.
            if name.parse::<IpAddr>().is_ok() {
                found.push(Leak::new("IPAM lease", path.display().to_string()));
            }
        }
    }
    Ok(found)
}

/// Whether a file is of a download that another pull continues: one with bytes and with a note about their
/// source. A daemon removes all others when it starts.
fn can_be_continued(path: &Path) -> bool {
    let is_of_pair = path
        .extension()
        .is_some_and(|extension| extension == PART || extension == NOTE);
    let part = fs::metadata(path.with_extension(PART));
    let has_bytes = part.is_ok_and(|part| part.len() > 0);
    is_of_pair && has_bytes && path.with_extension(NOTE).exists()
}

/// The domains that a libvirtd that no longer exists has on disk.
pub(super) fn domain_names(layout: &Layout) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in ["libvirt/etc/qemu", "libvirt/run/qemu"] {
        for path in entries(&layout.path(folder))? {
            if path.extension().is_some_and(|extension| extension == "xml") {
                names.push(
                    path.file_stem()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned(),
                );
            }
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        other => other.with_context(|| format!("list {}", folder.display()))?,
    };
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_disks_and_namespaces_are_leaks_and_images_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::existing(dir.path()).unwrap();
        let add = |name: &str| {
            let path = layout.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        assert_eq!(find(&layout).unwrap(), []);

        for innocent in [
            "cni/ipam/vmlet/lock",
            "cni/ipam/vmlet/last_reserved_ip.0",
            "state/images/x",
            "log/a.log",
        ] {
            add(innocent);
        }
        assert_eq!(find(&layout).unwrap(), []);

        for leak in [
            "cni/ipam/vmlet/10.88.0.2",
            "netns/pod",
            "state/pods/a",
            "state/seeds/a.iso",
            "cni/cache/results/vmlet-a-eth0",
        ] {
            add(leak);
        }
        let found = find(&layout).unwrap();
        let kinds: Vec<_> = found.iter().map(|leak| leak.kind).collect();
        assert_eq!(
            kinds,
            [
                "network namespace",
                "file",
                "file",
                "CNI cache entry",
                "IPAM lease"
            ]
        );
    }

    #[test]
    fn a_download_is_a_leak_unless_it_can_be_continued() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::existing(dir.path()).unwrap();
        fs::create_dir_all(layout.path(DOWNLOADS)).unwrap();
        for (name, content) in [
            ("kept.part", "x"),
            ("kept.json", "{}"),
            ("empty.part", ""),
            ("empty.json", "{}"),
            ("without-note.part", "x"),
            ("without-bytes.json", "{}"),
            ("kept.new", "{}"),
        ] {
            fs::write(layout.path(DOWNLOADS).join(name), content).unwrap();
        }
        let found = find(&layout).unwrap();
        let expected = [
            "empty.json",
            "empty.part",
            "kept.new",
            "without-bytes.json",
            "without-note.part",
        ];
        let expected = expected.map(|name| layout.path(DOWNLOADS).join(name));
        let expected = expected.map(|path| Leak::new("download", path.display().to_string()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_folder_that_a_daemon_does_not_have_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::existing(dir.path()).unwrap();
        fs::create_dir_all(layout.path("log")).unwrap();
        fs::write(layout.log("vmlet"), "").unwrap();
        for folder in OF_DAEMON.iter().skip(1) {
            fs::create_dir_all(layout.path(folder)).unwrap();
        }
        let found = find(&layout).unwrap();
        let expected = layout.path(OF_DAEMON[0]).display().to_string();
        assert_eq!(found, [Leak::new("lost", expected)]);
    }

    #[test]
    fn a_killed_libvirtd_still_lists_its_domains() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::existing(dir.path()).unwrap();
        fs::create_dir_all(layout.path("libvirt/etc/qemu")).unwrap();
        fs::create_dir_all(layout.path("libvirt/run/qemu")).unwrap();
        for file in [
            "etc/qemu/vm-a.xml",
            "run/qemu/vm-a.xml",
            "run/qemu/vm-a.pid",
        ] {
            fs::write(layout.path("libvirt").join(file), "").unwrap();
        }
        assert_eq!(domain_names(&layout).unwrap(), ["vm-a"]);
    }
}
