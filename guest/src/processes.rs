//! The processes of a session, and their descendants in other sessions.
//!
//! Invariant: only these are signalled; the caller holds the session's leader, which keeps the
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
        let members = members(Path::new("/proc"), leader);
        if members.is_empty() {
            return;
        }
        for member in members {
            // It may have ended since.
            let _ = kill(member, Signal::SIGKILL);
        }
    }
}

/// A living process.
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
}

/// The living processes of a session, and their living descendants.
fn members(proc: &Path, leader: Pid) -> Vec<Pid> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<_> = pids.filter_map(|pid| living(proc, pid)).collect();
    let mut found: HashSet<i32> = HashSet::from([leader.as_raw()]);
    let mut known = 0;
    while known != found.len() {
        known = found.len();
        for process in &all {
            if process.session == leader.as_raw() || found.contains(&process.parent) {
                found.insert(process.pid);
            }
        }
    }
    let members = all.iter().map(|process| process.pid);
    let members = members.filter(|pid| found.contains(pid));
    members.map(Pid::from_raw).collect()
}

fn living(proc: &Path, pid: i32) -> Option<Process> {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The command is in brackets and may hold anything: state, parent, group, session.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let process = Process {
        pid,
        parent: fields.next()?.parse().ok()?,
        session: fields.nth(1)?.parse().ok()?,
    };
    (!matches!(state, "Z" | "X")).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_the_living_processes_of_the_session_and_their_descendants() {
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
        let mut found = members(proc.path(), Pid::from_raw(10));
        found.sort();
        assert_eq!(found, [10, 11, 13, 15, 16].map(Pid::from_raw));
    }
}
