//! Lists of the node's CPUs, as `0-3,7`, and processes that are confined to them.
//!
//! Invariant: a list that was read is sorted, without doubles and within [`MOST`].
//! Failure: `None` for text that is no list; the kernel's error for CPUs that the node does not
//! have.

use std::collections::BTreeSet;
use std::io;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// CPUs that a node may have; more than Linux supports.
const MOST: u32 = 8192;

/// Reads a list; an empty text is an empty list.
pub(in crate::vm) fn parse(text: &str) -> Option<Vec<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = number(first)?;
        let last = number(last)?;
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus.into_iter().collect())
}

/// Writes a list, CPU by CPU; nothing when it is empty.
pub(in crate::vm) fn text(cpus: &[u32]) -> Option<String> {
    let words: Vec<_> = cpus.iter().map(u32::to_string).collect();
    (!words.is_empty()).then(|| words.join(","))
}

/// Lets every thread of a process run on these CPUs only; threads that come later inherit that.
/// Blocks shortly.
pub(in crate::vm) fn confine(pid: i32, cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu as usize)?;
    }
    let mut done = BTreeSet::new();
    loop {
        let mut fresh = false;
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = task?.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if done.insert(thread) {
                fresh = true;
                match sched_setaffinity(Pid::from_raw(thread), &set) {
                    // It has ended.
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        // A thread that was made meanwhile may have its maker's old CPUs.
        if !fresh {
            return Ok(());
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && *n < MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_of_a_process_is_confined() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let before = nix::sched::sched_getaffinity(Pid::from_raw(pid)).unwrap();
        let one = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap());
        let one = u32::try_from(one.unwrap()).unwrap();
        let confined = confine(pid, &[one]);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        confined.unwrap();
        let line = format!("Cpus_allowed_list:\t{one}\n");
        assert!(status.contains(&line), "{status}");
        assert!(confine(pid, &[]).is_err());
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(parse("7,1-2,2"), Some(vec![1, 2, 7]));
        assert_eq!(parse(""), Some(Vec::new()));
        for wrong in ["a", "1-", "-1", "2-1", "1,,2", "+1", "0-4294967295", " 1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(text(&[0, 3]).as_deref(), Some("0,3"));
        assert_eq!(text(&[]), None);
    }
}
