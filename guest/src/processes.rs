//! The processes of a session, and their descendants in other sessions.
//!
//! Invariant: only these are signalled and counted; the caller holds the session's leader, which keeps the
//! number from being used again.
//! Failure: none; a process that has ended meanwhile needs no signal. A descendant in a session of
//! its own whose parents have all ended is not found.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Passes over all processes: one that is started during a pass is found by the next one.
const PASSES: usize = 100;

/// Kills everything that runs in the session of this leader, and what that has started.
pub(crate) fn kill_session(leader: Pid) {
    for _ in 0..PASSES {
        let processes = all(Path::new("/proc"));
        let living = members(&processes, leader).filter(|member| member.is_alive);
        let living: Vec<_> = living.map(|member| member.pid).collect();
        if living.is_empty() {
            return;
        }
        for pid in living {
            // It may have ended since.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) session: i32,
    /// It has not ended: one that has may exist until its parent has waited for it.
    pub(crate) is_alive: bool,
    /// CPU time in clock ticks, with that of its children that it has waited for.
    pub(crate) ticks: u64,
    /// Resident memory.
    pub(crate) pages: u64,
}

/// All processes.
pub(crate) fn all(proc: &Path) -> Vec<Process> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| process(proc, pid)).collect()
}

/// The processes of a session, and their descendants.
pub(crate) fn members(processes: &[Process], leader: Pid) -> impl Iterator<Item = &Process> {
    let mut found: HashSet<i32> = HashSet::from([leader.as_raw()]);
    let mut known = 0;
    while known != found.len() {
        known = found.len();
        for process in processes {
            if process.session == leader.as_raw() || found.contains(&process.parent) {
                found.insert(process.pid);
            }
        }
    }
    let is_member = move |process: &&Process| found.contains(&process.pid);
    processes.iter().filter(is_member)
}

fn process(proc: &Path, pid: i32) -> Option<Process> {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The command is in brackets and may hold anything; what follows begins with the third field.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let times = (14..=17).filter_map(number);
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        is_alive: !matches!(*fields.first()?, "Z" | "X"),
        ticks: times.fold(0, u64::saturating_add),
        pages: number(24).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_the_processes_of_the_session_and_their_descendants() {
        let proc = tempfile::tempdir().unwrap();
        let plant = |pid: i32, stat: &str| {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("stat"), format!("{pid} (a) x) {stat}")).unwrap();
        };
        plant(10, "S 1 10 10 0 -1");
        plant(11, "R 10 11 10 0 -1");
        plant(12, "Z 10 11 10 0 -1");
        // In another session, and started from this one.
        plant(13, "S 10 11 1 0 -1");
        plant(14, "");
        plant(15, "S 11 15 15 0 -1");
        plant(16, "S 15 16 16 0 -1");
        plant(17, "S 14 17 17 0 -1");
        fs::create_dir(proc.path().join("self")).unwrap();
        let all = all(proc.path());
        let members = members(&all, Pid::from_raw(10));
        let mut found: Vec<_> = members.map(|found| (found.pid, found.is_alive)).collect();
        found.sort_unstable();
        let expected = [10, 11, 12, 13, 15, 16].map(|pid| (pid, pid != 12));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_process_has_its_cpu_time_and_memory() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        let stat = "7 (a b) S 1 7 7 0 -1 4194560 100 2 3 4 10 20 30 40 20 0 1 0 99 8192 5 1 2";
        fs::write(proc.path().join("7/stat"), stat).unwrap();
        let found = process(proc.path(), 7).unwrap();
        assert_eq!((found.ticks, found.pages), (100, 5));
    }
}
