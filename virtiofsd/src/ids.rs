//! User namespaces by which a mount shows other owners than its file system has.
//!
//! Invariant: two users change places, every other user stays.
//! Failure: the kernel's; a node may forbid user namespaces.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};

use crate::args::wait_for_start;

/// Two users, or two groups, that change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swap(pub(crate) u32, pub(crate) u32);

/// A namespace in which these users, and these groups, change places.
pub(crate) fn namespace(users: Option<Swap>, groups: Option<Swap>) -> Result<File> {
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
    fs::write(of("uid_map"), map(users)).context("map users")?;
    fs::write(of("gid_map"), map(groups)).context("map groups")?;
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

/// A map of the kernel: on the disk, as seen, count.
fn map(swap: Option<Swap>) -> String {
    let Some(Swap(one, other)) = swap.filter(|Swap(one, other)| one != other) else {
        // The last number is no user.
        return format!("0 0 {}\n", u32::MAX);
    };
    let low = one.min(other);
    let high = one.max(other);
    let mut map = format!("{low} {high} 1\n{high} {low} 1\n");
    for (first, end) in [(0, low), (low + 1, high), (high + 1, u32::MAX)] {
        if first < end {
            map += &format!("{first} {first} {}\n", end - first);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_users_change_places() {
        let swapped = |one, other| map(Some(Swap(one, other)));
        let expected = "0 7 1\n7 0 1\n1 1 6\n8 8 4294967287\n";
        assert_eq!(swapped(0, 7), expected);
        assert_eq!(swapped(0, 1), "0 1 1\n1 0 1\n2 2 4294967293\n");
        let last = u32::MAX - 1;
        let expected = format!("0 {last} 1\n{last} 0 1\n1 1 {}\n", last - 1);
        assert_eq!(swapped(0, last), expected);
        let expected = "5 9 1\n9 5 1\n0 0 5\n6 6 3\n10 10 4294967285\n";
        assert_eq!(swapped(9, 5), expected);
    }

    #[test]
    fn a_user_that_changes_places_with_itself_stays() {
        assert_eq!(map(None), "0 0 4294967295\n");
        assert_eq!(map(Some(Swap(7, 7))), "0 0 4294967295\n");
    }
}
