//! The names that a pod gives its disks, as links in the guest.
//!
//! Invariant: a device of the guest is never replaced; a link is made again at each boot.
//! Failure: none here; in the guest a link that cannot be made is named on the console.

use podspec::GuestFile;

use super::super::blocks::serial;
use super::vendor::quoted;

/// Where guests find the script, as with the predecessor.
pub(super) const PATH: &str = "/etc/cloud/symlink-devs.sh";
const MODE: u32 = 0o755;

/// The script; `None` when the pod names no disk but its root disk.
pub(super) fn script(paths: &[&str]) -> Option<String> {
    let links = paths.iter().filter_map(|path| {
        let serial = serial(paths, path)?;
        GuestFile::is_path(path).then(|| {
            let path = quoted(path);
            format!("link /dev/disk/by-id/virtio-{serial} {path}\n")
        })
    });
    let links: String = links.collect();
    (!links.is_empty()).then(|| include_str!("links.sh").to_owned() + &links)
}

/// The script as a file of the guest.
pub(super) fn file(script: &str) -> GuestFile {
    GuestFile {
        path: PATH.to_owned(),
        mode: MODE,
        content: script.as_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_root_disk_needs_no_name() {
        assert_eq!(script(&[]), None);
        assert_eq!(script(&["/"]), None);
    }

    #[test]
    fn each_device_has_the_name_that_the_pod_gives_it() {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let data = below("dev/data");
        let logs = below("dev/it's/logs");
        let script = script(&["/", &data, &logs]).unwrap();
        // A name that is a file or a device of the guest already stays what it is.
        for _ in 0..2 {
            let status = Command::new("sh").args(["-c", &script]).status().unwrap();
            assert!(status.success());
            let link = |path: &str| fs::read_link(path).unwrap();
            assert_eq!(link(&data).to_str(), Some("/dev/disk/by-id/virtio-data"));
            assert_eq!(link(&logs).to_str(), Some("/dev/disk/by-id/virtio-logs"));
        }
        fs::remove_file(&data).unwrap();
        fs::write(&data, "kept").unwrap();
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(fs::read_to_string(&data).unwrap(), "kept");
        let reported = String::from_utf8(output.stderr).unwrap();
        assert!(reported.contains(&data), "{reported}");
    }
}
