//! Reads the table of mounts of this process, and takes mounts out of it.
//!
//! Invariant: mount points come in the order in which they were mounted.
//! Failure: lines of an unknown shape are left out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// The kind of a mount that keeps a namespace.
pub(crate) const NAMESPACE: &str = "nsfs";

/// One mounted file system.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Numbers of the device, such as `254:0`.
    pub(crate) device: String,
    /// The part of the file system that is mounted; of a namespace its name, such as `net:[4026532]`.
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    /// The kind of file system.
    pub(crate) kind: String,
}

/// A folder as a part of its file system.
#[derive(Debug)]
pub(crate) struct Source {
    device: String,
    folder: PathBuf,
}

impl Source {
    /// Whether a mount shows something in the folder, or all of it.
    pub(crate) fn holds(&self, mount: &Mount) -> bool {
        mount.device == self.device && mount.root.starts_with(&self.folder)
    }
}

/// The part of a file system that a folder is, by the mount that is uppermost there.
pub(crate) fn source(all: &[Mount], folder: &Path) -> Option<Source> {
    let above = all.iter().filter(|mount| folder.starts_with(&mount.point));
    // Of several at one point the last one is.
    let mount = above.max_by_key(|mount| mount.point.components().count())?;
    let below = folder.strip_prefix(&mount.point).ok()?;
    Some(Source {
        device: mount.device.clone(),
        folder: mount.root.join(below),
    })
}

/// All mounts that this process sees.
pub(crate) fn all() -> Result<Vec<Mount>> {
    read("/proc/self/mountinfo")
}

/// All mounts that another process sees.
pub(crate) fn of_process(pid: i32) -> Result<Vec<Mount>> {
    read(&format!("/proc/{pid}/mountinfo"))
}

/// Detaches a mount of this process's own namespace. One that no longer exists already is fine: the
/// kernel detaches a mount everywhere when any process removes the file that it covers.
pub(crate) fn detach(point: &Path) -> Result<()> {
    match umount2(point, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("detach {}", point.display())),
    }
}

fn read(file: &str) -> Result<Vec<Mount>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    Ok(parse(&text))
}

/// The mount points below `dir`.
pub(crate) fn below(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(all()?
        .into_iter()
        .map(|mount| mount.point)
        .filter(|point| point.starts_with(dir))
        .collect())
}

/// The mounts of a table as the kernel prints it.
pub(crate) fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount_of).collect()
}

fn mount_of(line: &str) -> Option<Mount> {
    let (mount, source) = line.split_once(" - ")?;
    // Before them are the numbers of the mount and of its parent.
    let mut fields = mount.split(' ').skip(2);
    Some(Mount {
        device: fields.next()?.to_owned(),
        root: PathBuf::from(unescape(fields.next()?)),
        point: PathBuf::from(unescape(fields.next()?)),
        kind: source.split(' ').next()?.to_owned(),
    })
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(field: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(field.to_owned(), |text, (code, character)| {
        text.replace(code, character)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_what_is_mounted_where() {
        let text = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                    40 27 0:4 net:[4026532] /run/a\\040b rw shared:1 master:2 - nsfs nsfs rw\nnonsense\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts[1],
            Mount {
                device: "0:4".to_owned(),
                root: PathBuf::from("net:[4026532]"),
                point: PathBuf::from("/run/a b"),
                kind: NAMESPACE.to_owned()
            }
        );
    }
}
