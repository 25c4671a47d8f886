//! User namespaces by which a mount shows other owners than its file system has.
//!
//! Invariant: root and the user of the server change places, every other user stays.
//! Failure: the kernel's; a node may forbid user namespaces.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};

use crate::args::wait_for_start;

/// A namespace in which root is this user and this group; `None` is root itself.
pub(crate) fn namespace(uid: Option<u32>, gid: Option<u32>) -> Result<File> {
    // The process that makes a namespace cannot write the maps that are wanted.
    let mut holder = Command::new("/proc/self/exe")
        .arg("ids")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the holder of a user namespace")?;
    let mut is_ready = Vec::new();
    if let Some(output) = holder.stdout.take() {
        output.take(1).read_to_end(&mut is_ready)?;
    }
    ensure!(!is_ready.is_empty(), "the node makes no user namespace");
    let of = |file: &str| format!("/proc/{}/{file}", holder.id());
    fs::write(of("uid_map"), map(uid)).context("map users")?;
    fs::write(of("gid_map"), map(gid)).context("map groups")?;
    let namespace = File::open(of("ns/user")).context("open the user namespace")?;
    drop(holder.stdin.take());
    holder.wait().context("wait for the holder")?;
    Ok(namespace)
}

/// Makes a namespace, reports that by one byte, and holds it.
pub(crate) fn hold() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER).context("make a user namespace")?;
    let mut output = std::io::stdout();
    output.write_all(b"\n").and_then(|()| output.flush())?;
    wait_for_start()
}

fn map(root: Option<u32>) -> String {
    // The last number is no user.
    root.map_or_else(|| format!("0 0 {}\n", u32::MAX), swapped)
}

/// A map of the kernel: on the disk, as seen, count.
fn swapped(id: u32) -> String {
    let mut map = format!("0 {id} 1\n{id} 0 1\n");
    if id > 1 {
        map += &format!("1 1 {}\n", id - 1);
    }
    // The last number is no user.
    let (after, count) = (id + 1, u32::MAX - 1 - id);
    if count > 0 {
        map += &format!("{after} {after} {count}\n");
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_user_change_places() {
        let map = "0 7 1\n7 0 1\n1 1 6\n8 8 4294967287\n";
        assert_eq!(swapped(7), map);
        assert_eq!(swapped(1), "0 1 1\n1 0 1\n2 2 4294967293\n");
        let last = u32::MAX - 1;
        let map = format!("0 {last} 1\n{last} 0 1\n1 1 {}\n", last - 1);
        assert_eq!(swapped(last), map);
    }
}
