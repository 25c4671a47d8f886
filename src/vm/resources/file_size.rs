//! The bound of the files of an emulator.
//!
//! An emulator that its guest has taken over could otherwise fill the file system of the node through
//! its disk or its console, which count for machines of others, too.
//!
//! Invariant: no file of an emulator grows beyond twice its largest disk, or its memory, and some
//! more; so nothing that QEMU itself writes is near to it. Its console, which only ever grows, gets
//! more at a bounded rate. Files of volumes have the size of the volume as their bound: an emulator that
//! has some is not bounded here.
//! Failure: a write beyond it fails with an error for the guest; a machine whose disk has no recorded
//! size has no bound.

use std::io;
use std::path::Path;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::platform::Platform;
use crate::vm::domain::Room;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// What every file may have beyond its disk.
const BASE: u64 = 16 << 30;
/// The console gets more when less than this is left.
const LEFT: u64 = 8 << 30;
/// More, in each round.
const STEP: u64 = 128 << 20;

/// The most bytes of a file, for the largest disk and the memory of a machine.
fn bound(disk: u64, memory: u64) -> u64 {
    let largest = disk.max(memory);
    largest.saturating_mul(2).saturating_add(BASE)
}

/// The memory that a machine may have.
pub(in crate::vm) fn memory(room: &Room) -> u64 {
    let spare = room.spare.map_or(0, |spare| spare.most_mib);
    room.memory_mib
        .saturating_add(spare)
        .saturating_mul(1 << 20)
}

/// The bound of a machine's files; `None` when the size of its disk is not known.
pub(in crate::vm) fn file_size(disk: Option<u64>, room: &Room) -> Option<u64> {
    Some(bound(disk?, memory(room)))
}

/// A higher limit for a console of this length.
fn raised(limit: u64, console: u64) -> Option<u64> {
    (limit.saturating_sub(console) < LEFT).then(|| limit.saturating_add(STEP))
}

impl<P: Platform> Containers<P> {
    /// The size of the largest disk in a file of the state directory, as it is recorded; `None` when the
    /// emulator has other files, or it is not known.
    pub(in crate::vm) fn disk_bytes(&self, row: &Container) -> Option<u64> {
        if row.has_files() {
            return None;
        }
        if row.root_block().is_some() {
            return Some(0);
        }
        let directory = match row.vm() {
            Some(vm) => self.parts.disks.file(vm).parent()?.to_owned(),
            None => self.paths.pod(&row.sandbox),
        };
        self.parts.disks.qemu_img().recorded_size(&directory)
    }

    /// One round: consoles that come near to the limit of their emulators get more.
    pub async fn make_room_for_consoles(&self) {
        let rows = self.list().into_iter();
        for row in rows.filter(|row| row.phase.runs() && !row.is_process()) {
            let console = self.paths.console_file(&row.id);
            let work = move |pid: i32| make_room(pid, &console);
            let emulator = self.emulator(&row);
            let made = self.meter.at_machine(row.id.clone(), emulator, work).await;
            match made {
                Some(Ok(Some(limit))) => {
                    tracing::debug!(container = %row.id, limit, "limit of files raised for the console");
                }
                Some(Err(error)) => {
                    let error = crate::one_line(&error);
                    tracing::warn!(container = %row.id, error, "limit of files not raised for the console");
                }
                Some(Ok(None)) | None => {}
            }
        }
    }
}

/// Raises the limit of a process if its console needs it; returns the new one.
fn make_room(pid: i32, console: &Path) -> io::Result<Option<u64>> {
    let length = match std::fs::symlink_metadata(console) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?.len(),
    };
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let Some(limit) = limit_in(&limits).and_then(|limit| raised(limit, length)) else {
        return Ok(None);
    };
    let limits = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    prlimit(Pid::from_raw(pid), Resource::Fsize, limits)?;
    Ok(Some(limit))
}

/// The limit of a process as the kernel prints it; `None` without one.
fn limit_in(limits: &str) -> Option<u64> {
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max file size"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_qemu_writes_is_near_the_bound() {
        let gib = 1 << 30;
        assert_eq!(bound(0, 0), BASE);
        assert_eq!(bound(20 * gib, 4 * gib), 56 * gib);
        assert_eq!(bound(gib, 64 * gib), 144 * gib);
        assert_eq!(bound(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn a_console_gets_more_in_small_steps_and_only_near_the_limit() {
        let limit = bound(20 << 30, 0);
        assert_eq!(raised(limit, 0), None);
        assert_eq!(raised(limit, limit - LEFT), None);
        assert_eq!(raised(limit, limit - LEFT + 1), Some(limit + STEP));
        // However long its emulator has made the file.
        assert_eq!(raised(limit, limit), Some(limit + STEP));
        assert_eq!(raised(limit, u64::MAX), Some(limit + STEP));
    }

    #[test]
    fn the_limit_of_a_process_is_read_and_raised() {
        let mut sleeper = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        let console = tempfile::NamedTempFile::new().unwrap();
        let shown = || std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        // One that an earlier version has started has none.
        let before = (limit_in(&shown()), make_room(pid, console.path()).unwrap());
        console.as_file().set_len(1 << 30).unwrap();
        let limits = Rlimit {
            current: Some(LEFT),
            maximum: None,
        };
        prlimit(Pid::from_raw(pid), Resource::Fsize, limits).unwrap();
        let after = make_room(pid, console.path()).unwrap();
        let seen = limit_in(&shown());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(before, (None, None));
        assert_eq!((after, seen), (Some(LEFT + STEP), Some(LEFT + STEP)));
    }
}
