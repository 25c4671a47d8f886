//! The file systems that a freeze is about, in its order, from the kernel's table of mounts.
//!
//! Invariant: a file system is there once, however often it is mounted, and before all that were mounted earlier:
//! it may lie in a file of one of those.
//! Failure: a sentence that names the mount point.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::facts::unescaped;

/// A file system on a block device that can be written to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Its number, as `8:1`.
    device: String,
    /// Its kind, as `ext4`.
    kind: String,
    mounts: Vec<Mount>,
}

/// A place where it is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The kernel's number of the mount.
    id: String,
    point: String,
}

/// A mount point that is open.
#[derive(Debug)]
pub(crate) struct Point {
    /// Its path.
    pub(crate) path: String,
    pub(crate) file: File,
}

/// The writable file systems of a table such as `/proc/self/mountinfo`, the last mounted first.
pub(crate) fn writable(table: &str) -> Vec<FileSystem> {
    let mut all: Vec<FileSystem> = Vec::new();
    for one in table.lines().filter_map(writable_mount) {
        match all.iter_mut().find(|known| known.device == one.device) {
            Some(known) => known.mounts.extend(one.mounts),
            None => all.push(one),
        }
    }
    all.reverse();
    all
}

/// The file system of a line, with its mount, if it is on a block device and can be written to.
fn writable_mount(line: &str) -> Option<FileSystem> {
    // Between the options and this mark are fields of any number.
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    let mut file_system = file_system.split(' ');
    let id = mount.next()?.to_owned();
    let device = mount.nth(1)?.to_owned();
    let point = unescaped(mount.nth(1)?);
    let kind = file_system.next()?;
    let source = file_system.next()?;
    let options = file_system.next()?;
    // Several devices together have a number of no device.
    let is_on_disk = !device.starts_with("0:") || source.starts_with("/dev/") || kind == "zfs";
    let is_writable = options.split(',').any(|option| option == "rw");
    (is_on_disk && is_writable).then_some(FileSystem {
        device,
        kind: kind.to_owned(),
        mounts: vec![Mount { id, point }],
    })
}

impl FileSystem {
    /// Opens one of its mount points; the path of one may lead to what is mounted over it.
    pub(crate) fn open(&self) -> Result<Point, String> {
        let mut reason = String::new();
        if self.kind == "zfs" || self.kind.starts_with("fuse") {
            // A program, or what does not answer to the kernel's call, writes to the disk.
            let point = self.mounts.first().map(|mount| mount.point.as_str());
            let point = point.unwrap_or_default();
            return Err(format!(
                "failed to freeze {point}: Linux cannot freeze {}",
                self.kind
            ));
        }
        for Mount { point, .. } in &self.mounts {
            match open(Path::new(point)) {
                Ok(file) if self.has(&file) => {
                    let path = point.clone();
                    return Ok(Point { path, file });
                }
                Ok(_) => reason = format!("failed to reach {point}: another mount hides it"),
                Err(error) => reason = format!("failed to open {point}: {error}"),
            }
        }
        Err(reason)
    }

    /// Whether a file was opened by one of its mounts.
    fn has(&self, file: &File) -> bool {
        let facts = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
        let facts = std::fs::read_to_string(facts).unwrap_or_default();
        let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        id.is_some_and(|id| self.mounts.iter().any(|mount| mount.id == id.trim()))
    }
}

/// Opens a mount point for the calls that freeze and thaw.
pub(crate) fn open(point: &Path) -> std::io::Result<File> {
    let found = std::fs::metadata(point)?;
    if !found.is_dir() && !found.is_file() {
        // To open a device may do something.
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    options.read(true).custom_flags(flags.bits()).open(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &str) -> Vec<(String, Vec<String>)> {
        let all = writable(table).into_iter();
        let points = |mounts: Vec<Mount>| mounts.into_iter().map(|mount| mount.point).collect();
        all.map(|one| (one.device, points(one.mounts))).collect()
    }

    #[test]
    fn a_file_system_comes_once_and_before_those_that_it_may_lie_on() {
        let table = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                     22 21 0:20 / /proc rw - proc proc rw\n\
                     23 21 8:2 / /read ro - ext4 /dev/sda2 ro\n\
                     24 21 7:0 / /loop\\040a rw master:3 propagate_from:4 - ext4 /dev/loop0 rw,discard\n\
                     25 21 8:1 /a /bound ro - ext4 /dev/sda1 rw\n\
                     26 21 0:30 / /many rw - btrfs /dev/sdb rw,space_cache\n\
                     27 21 0:31 / /upper rw - overlay overlay rw,upperdir=/u\n\
                     28 21 0:32 / /remote rw - nfs host:/dev/x rw\n\
                     29 21 8:9 / /served rw - fuseblk /dev/sda9 rw\n\
                     30 21 0:50 / /pool rw - zfs tank/data rw\n\
                     31 21 0:51 / /far rw - fuse.sshfs host: rw\n\
                     odd line\n";
        let one = |device: &str, points: &[&str]| {
            let points = points.iter().map(|point| (*point).to_owned());
            (device.to_owned(), points.collect::<Vec<_>>())
        };
        let expected = [
            one("0:50", &["/pool"]),
            one("8:9", &["/served"]),
            one("0:30", &["/many"]),
            one("7:0", &["/loop a"]),
            // It was mounted first: what is mounted on a file of it is frozen before.
            one("8:1", &["/", "/bound"]),
        ];
        assert_eq!(names(table), expected);
        let refused = |point: &str| {
            let all = writable(table).into_iter();
            let mut found = all.filter(|one| one.mounts[0].point == point);
            found.next().unwrap().open().unwrap_err()
        };
        for (point, kind) in [("/pool", "zfs"), ("/served", "fuseblk")] {
            let words = refused(point);
            assert!(words.contains(point) && words.contains(kind), "{words}");
        }
    }

    #[test]
    fn a_mount_that_another_one_hides_is_not_taken_for_it() {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let proc = table.lines().rfind(|line| line.contains(" /proc "));
        let id = proc.unwrap().split(' ').next().unwrap();
        let file_system = |id: &str| FileSystem {
            device: "8:1".to_owned(),
            kind: "proc".to_owned(),
            mounts: vec![Mount {
                id: id.to_owned(),
                point: "/proc".to_owned(),
            }],
        };
        assert_eq!(file_system(id).open().unwrap().path, "/proc");
        let refused = file_system("4294967295").open().unwrap_err();
        assert!(refused.contains("hides"), "{refused}");
    }
}
