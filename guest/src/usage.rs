//! What the processes of kept sessions use: by their cgroups, or by the table of processes in a
//! guest that has none.
//!
//! Invariant: one pass over all processes for all sessions; a session whose command ends during the
//! pass is left out, since its number may be that of another process.
//! Failure: none; what the kernel does not tell is 0.

use std::path::Path;
use std::sync::Arc;

use guestapi::{SESSIONS, Usage};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::processes::{Process, all, members};
use crate::session::Session;

/// The usage of those sessions whose command runs.
pub(crate) fn usage(sessions: &[Arc<Session>]) -> Vec<Usage> {
    let running: Vec<_> = sessions.iter().filter(|session| session.exists()).collect();
    let processes = all(Path::new("/proc"));
    let of = |session: &Arc<Session>| {
        let mut usage = sum(&processes, session.pid());
        if let Some(used) = session.used() {
            usage.cpu = used.cpu;
            usage.memory = used.memory;
            usage.working_set = used.memory.saturating_sub(used.inactive_file);
            usage.anonymous = used.anonymous;
            usage.processes = used.processes.unwrap_or(usage.processes);
        }
        session.exists().then(|| Usage {
            keep: session.keep().to_owned(),
            ..usage
        })
    };
    running.into_iter().filter_map(of).take(SESSIONS).collect()
}

fn sum(processes: &[Process], leader: Pid) -> Usage {
    let unit = |variable, usual: u64| {
        let value = sysconf(variable).ok().flatten();
        value.and_then(|v| u64::try_from(v).ok()).unwrap_or(usual)
    };
    let tick = 1_000_000_000 / unit(SysconfVar::CLK_TCK, 100).max(1);
    let page = unit(SysconfVar::PAGE_SIZE, 4096);
    let mut usage = Usage::default();
    for process in members(processes, leader) {
        // One that has ended counts until its parent has waited for it, and counts it, too.
        usage.cpu = usage.cpu.saturating_add(process.ticks.saturating_mul(tick));
        if process.is_alive {
            let memory = process.pages.saturating_mul(page);
            usage.memory = usage.memory.saturating_add(memory);
            usage.processes += 1;
        }
    }
    (usage.working_set, usage.anonymous) = (usage.memory, usage.memory);
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_the_sum_over_the_session_and_its_descendants() {
        let process = |pid, parent, is_alive| Process {
            pid,
            parent,
            session: 10,
            is_alive,
            ticks: 7,
            pages: 3,
        };
        let processes = [
            process(10, 1, true),
            process(11, 10, false),
            Process {
                session: 12,
                ..process(12, 10, true)
            },
            Process {
                session: 13,
                ..process(13, 1, true)
            },
        ];
        let usage = sum(&processes, Pid::from_raw(10));
        assert_eq!(usage.processes, 2);
        assert!(usage.cpu > 0 && usage.memory > 0);
        let one = sum(&processes, Pid::from_raw(13));
        assert_eq!((one.processes, usage.cpu), (1, 3 * one.cpu));
        assert_eq!(usage.memory, 2 * one.memory);
        assert_eq!(sum(&processes, Pid::from_raw(99)), Usage::default());
    }
}
