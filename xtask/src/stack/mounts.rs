//! Reads the table of mounts of this process, and takes mounts out of it.
//!
//! Invariant: mount points come in the order in which they were mounted.
//! Failure: lines of an unknown shape are left out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// One mounted file system.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    /// The kind of file system; `nsfs` for a namespace that is kept alive by a mount.
    pub(crate) kind: String,
}

/// All mounts that this process sees.
pub(crate) fn all() -> Result<Vec<Mount>> {
    read("/proc/self/mountinfo")
}

/// All mounts that another process sees.
pub(crate) fn of(pid: i32) -> Result<Vec<Mount>> {
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

fn parse(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let (mount, source) = line.split_once(" - ")?;
            let point = PathBuf::from(unescape(mount.split(' ').nth(4)?));
            Some(Mount {
                point,
                kind: source.split(' ').next()?.to_owned(),
            })
        })
        .collect()
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
    fn a_line_gives_the_mount_point_and_the_kind() {
        let text = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                    40 27 0:4 net:[4026532] /run/a\\040b rw shared:1 master:2 - nsfs nsfs rw\nnonsense\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts[1],
            Mount {
                point: PathBuf::from("/run/a b"),
                kind: "nsfs".to_owned()
            }
        );
    }
}
