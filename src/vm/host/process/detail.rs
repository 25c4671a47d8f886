//! What one process uses beyond its statistics: for metrics.
//!
//! Invariant: at most [`FILES`] descriptors are looked at; nothing is read that the process itself
//! writes.
//! Failure: none; what cannot be read is absent.

use super::{Processes, TICK};

/// Descriptors that are counted at most; a machine has some hundred.
const FILES: usize = 16 * 1024;

/// Figures of one process; memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessDetail {
    /// CPU time in user mode, in nanoseconds.
    pub user_nanoseconds: Option<u64>,
    /// CPU time in the kernel, in nanoseconds.
    pub system_nanoseconds: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open descriptors.
    pub files: Option<u64>,
    /// Open descriptors that are sockets.
    pub sockets: Option<u64>,
    /// Soft limit of open descriptors; absent without a limit.
    pub files_limit: Option<u64>,
    /// Files that are mapped and in memory.
    pub mapped_file: Option<u64>,
    /// Shared memory that is mapped and in memory.
    pub shared: Option<u64>,
    /// Page tables.
    pub page_tables: Option<u64>,
    /// Largest amount that was in memory.
    pub peak: Option<u64>,
    /// Bytes read from block devices.
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices.
    pub written_bytes: Option<u64>,
}

impl Processes {
    /// Figures of a process. Blocks for some small reads and a list of its descriptors.
    pub(in crate::vm) fn detail(&self, pid: i32) -> ProcessDetail {
        let text = |file| {
            let read = self.read(pid, file).unwrap_or_default();
            String::from_utf8_lossy(&read).into_owned()
        };
        let status = text("status");
        let io = text("io");
        let limits = text("limits");
        let ticks = |field| self.stat(pid, field)?.checked_mul(TICK);
        let (files, sockets) = self.descriptors(pid).unzip();
        ProcessDetail {
            user_nanoseconds: ticks(14),
            system_nanoseconds: ticks(15),
            threads: number(&status, "Threads:"),
            files,
            sockets,
            files_limit: number(&limits, "Max open files"),
            mapped_file: size(&status, "RssFile:"),
            shared: size(&status, "RssShmem:"),
            page_tables: size(&status, "VmPTE:"),
            peak: size(&status, "VmHWM:"),
            read_bytes: number(&io, "read_bytes:"),
            written_bytes: number(&io, "write_bytes:"),
        }
    }

    /// All descriptors, and those that are sockets.
    fn descriptors(&self, pid: i32) -> Option<(u64, u64)> {
        let entries = std::fs::read_dir(self.directory(pid).join("fd")).ok()?;
        let mut all = 0;
        let mut sockets = 0;
        for entry in entries.take(FILES).flatten() {
            all += 1;
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
        }
        Some((all, sockets))
    }
}

/// The first word after `key`, where it is a number.
fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The value of a line `key 12 kB`, in bytes.
pub(super) fn size(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_process_is_read_from_its_files() {
        let proc = tempfile::tempdir().unwrap();
        let dir = proc.path().join("7");
        std::fs::create_dir_all(dir.join("fd")).unwrap();
        let plant = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
        plant(
            "status",
            "VmHWM:\t 9 kB\nRssFile:\t 2 kB\nRssShmem:\t 4 kB\nVmPTE:\t 1 kB\nThreads:\t5\n",
        );
        plant("io", "rchar: 9\nread_bytes: 100\nwrite_bytes: 200\n");
        plant(
            "limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n",
        );
        plant("stat", "7 (q) S 1 2 3 4 5 6 7 8 9 10 11 12 13\n");
        for (number, target) in [("0", "/dev/null"), ("1", "socket:[1]"), ("2", "pipe:[2]")] {
            symlink(target, dir.join("fd").join(number)).unwrap();
        }
        let expected = ProcessDetail {
            user_nanoseconds: Some(11 * TICK),
            system_nanoseconds: Some(12 * TICK),
            threads: Some(5),
            files: Some(3),
            sockets: Some(1),
            files_limit: Some(1024),
            mapped_file: Some(2048),
            shared: Some(4096),
            page_tables: Some(1024),
            peak: Some(9216),
            read_bytes: Some(100),
            written_bytes: Some(200),
        };
        let processes = Processes::below(proc.path());
        assert_eq!(processes.detail(7), expected);
        assert_eq!(processes.detail(8), ProcessDetail::default());
    }

    #[test]
    fn our_own_process_has_threads_and_descriptors() {
        let own = Processes::default().detail(std::process::id().cast_signed());
        assert!(
            own.threads.unwrap() > 0 && own.files.unwrap() > 2,
            "{own:?}"
        );
    }
}
