//! The processes of a session, as the kernel counts them.
//!
//! Invariant: only processes of the session are signalled; the caller holds its leader, which keeps
//! the number from being used again.
//! Failure: none; a process that has ended meanwhile needs no signal.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Passes over all processes: one that is started during a pass is found by the next one.
const PASSES: usize = 100;

/// Kills everything that runs in the session of this leader.
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

/// The living processes of a session.
fn members(proc: &Path, leader: Pid) -> Vec<Pid> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids = pids.map(Pid::from_raw);
    pids.filter(|pid| is_living_member(proc, *pid, leader))
        .collect()
}

fn is_living_member(proc: &Path, pid: Pid, leader: Pid) -> bool {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // The command is in brackets and may hold anything: state, parent, group, session.
    let Some((_, fields)) = stat.rsplit_once(") ") else {
        return false;
    };
    let mut fields = fields.split(' ');
    let state = fields.next();
    let session = fields.nth(2).and_then(|session| session.parse().ok());
    session == Some(leader.as_raw()) && !matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_the_living_processes_of_the_session() {
        let proc = tempfile::tempdir().unwrap();
        let plant = |pid: i32, stat: &str| {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("stat"), format!("{pid} (a) x) {stat}")).unwrap();
        };
        plant(10, "S 1 10 10 0 -1");
        plant(11, "R 10 11 10 0 -1");
        plant(12, "Z 10 11 10 0 -1");
        plant(13, "S 10 11 1 0 -1");
        plant(14, "");
        fs::create_dir(proc.path().join("self")).unwrap();
        let mut found = members(proc.path(), Pid::from_raw(10));
        found.sort();
        assert_eq!(found, [10, 11].map(Pid::from_raw));
    }
}
