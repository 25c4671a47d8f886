//! Checks which guest used which disk: the guests' own counters, and the emulators with a disk
//! open.
//!
//! The test guest gives its disk a name at its first boot (`VMLET-DISK`), counts boots on it
//! (`VMLET-BOOTS`), and writes `VMLET-DISK-TAKEN` when another guest writes to it.
//!
//! Invariant: it reads every second until it is dropped, so that no log is removed unread;
//! each look remembers what it saw.
//! Failure: two machines on one disk, or what [`boots`](super::boots) finds.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use super::boots::{Boot, History, Seen, Testimony};
use crate::Cluster;

const EVERY: Duration = Duration::from_secs(1);

/// Looks in a thread of its own.
#[derive(Debug)]
pub(super) struct Witness {
    thread: JoinHandle<Result<Seen>>,
    stop: Sender<()>,
}

impl Witness {
    /// Watches the nodes of a cluster.
    pub(super) fn new(cluster: &Cluster) -> Self {
        let dirs: Vec<_> = cluster.nodes().map(|node| node.dir().to_owned()).collect();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || watch(&dirs, &stopped));
        Self { thread, stop }
    }

    /// Something was found: the verdict states what.
    pub(super) fn has_found(&self) -> bool {
        self.thread.is_finished()
    }

    /// Looks once more. `machines`: what was done to each.
    pub(super) fn verdict(self, machines: &BTreeMap<String, History>) -> Result<Testimony> {
        drop(self.stop);
        let seen = self
            .thread
            .join()
            .map_err(|_| anyhow!("the witness died"))??;
        seen.verdict(machines)
    }
}

fn watch(dirs: &[PathBuf], stopped: &Receiver<()>) -> Result<Seen> {
    let mut seen = Seen::default();
    loop {
        let last = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
        for dir in dirs {
            emulators(dir)?;
            for file in logs(&dir.join("logs/pods")) {
                // Between listing and reading kubelet may remove it.
                if let Ok(bytes) = fs::read(&file) {
                    read(&mut seen, file, &String::from_utf8_lossy(&bytes))?;
                }
            }
        }
        if last {
            return Ok(seen);
        }
    }
}

fn read(seen: &mut Seen, file: PathBuf, text: &str) -> Result<()> {
    let taken = text.lines().find(|line| line.contains("VMLET-DISK-TAKEN"));
    if let Some(line) = taken {
        bail!("two machines on one disk: {}: {line}", file.display());
    }
    let machine = machine_of(&file);
    let has_ticked = text.contains("VMLET-TICK");
    let disk = reported(text, "VMLET-DISK ");
    let boot = reported(text, "VMLET-BOOTS ");
    if let Some((_, disk)) = disk
        && let Some((line, count)) = boot
        && let Ok(count) = count.parse()
        && let Ok(at) = line.parse()
    {
        let disk = disk.to_owned();
        let boot = Some(Boot { disk, count, at });
        seen.add(file, machine, boot, has_ticked);
    } else {
        seen.add(file, machine, None, has_ticked);
    }
    Ok(())
}

/// The time of the first line with this word, and what follows the word.
fn reported<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let found = text.lines().find(|line| line.contains(word))?;
    let (before, after) = found.split_once(word)?;
    let time = before.split_whitespace().next()?;
    Some((time, after.trim()))
}

/// Emulators by the disk of a VirtualMachine that they were started with.
fn emulators(dir: &Path) -> Result<()> {
    let disks = dir.join("state/disks").display().to_string() + "/";
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for process in below(Path::new("/proc")) {
        // One that has just ended has an empty command line or none.
        let Ok(line) = fs::read(process.join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line);
        if !line.contains("guest=") {
            continue;
        }
        if let Some((_, rest)) = line.split_once(&disks) {
            let disk = rest.split('/').next().unwrap_or_default();
            let process = process.display().to_string();
            users.entry(disk.to_owned()).or_default().push(process);
        }
    }
    let shared = users.iter().find(|(_, users)| users.len() > 1);
    ensure!(shared.is_none(), "two emulators with one disk: {shared:?}");
    Ok(())
}

/// `NAMESPACE_POD_UID/CONTAINER/N.log` below `root`.
fn logs(root: &Path) -> Vec<PathBuf> {
    below(root)
        .iter()
        .flat_map(|pod| below(pod))
        .flat_map(|container| below(&container))
        .filter(|file| file.extension().is_some_and(|word| word == "log"))
        .collect()
}

fn below(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

/// The second word of the pod's folder.
fn machine_of(file: &Path) -> String {
    file.ancestors()
        .nth(2)
        .and_then(|pod| pod.file_name()?.to_str()?.split('_').nth(1))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(pod: &str) -> PathBuf {
        PathBuf::from(format!("/s/logs/pods/default_{pod}/vm/0.log"))
    }

    fn boot(second: u32, disk: &str, count: u32) -> String {
        let time = format!("2026-11-29T10:00:{second:02}.5Z stdout F");
        format!("{time} VMLET-DISK {disk}\n{time} VMLET-BOOTS {count}\n")
    }

    fn seen(logs: &[(&str, String)]) -> Result<Seen> {
        let mut seen = Seen::default();
        for (pod, text) in logs {
            read(&mut seen, log(pod), text)?;
        }
        Ok(seen)
    }

    fn made(creations: u32) -> BTreeMap<String, History> {
        let history = History {
            creations,
            ..History::default()
        };
        [("vm".to_owned(), history)].into()
    }

    #[test]
    fn the_logs_of_guests_say_which_disk_was_booted_and_when() {
        let logs = [
            ("vm_1", boot(1, "a", 1)),
            ("vm_2", boot(2, "a", 2)),
            ("vm_3", boot(3, "b", 1)),
            ("vm_4", "t stdout F VMLET-TICK 9 uptime=9.5\n".to_owned()),
        ];
        let reported = seen(&logs).unwrap().verdict(&made(2)).unwrap();
        assert_eq!((reported.boots, reported.disks), (3, 2));
        let late = [("vm_1", boot(2, "a", 1)), ("vm_2", boot(1, "a", 2))];
        assert!(seen(&late).unwrap().verdict(&made(1)).is_err());
    }

    #[test]
    fn a_guest_that_lost_its_disk_is_found() {
        let logs = [("vm_1", "t stdout F VMLET-DISK-TAKEN by x\n".to_owned())];
        let error = seen(&logs).unwrap_err();
        assert!(error.to_string().contains("two machines"), "{error}");
    }

    #[test]
    fn a_rotated_log_keeps_its_earlier_lines() {
        let mut seen = seen(&[("vm_1", boot(1, "a", 1))]).unwrap();
        let later = "t stdout F VMLET-TICK 900 uptime=900.5\n";
        read(&mut seen, log("vm_1"), later).unwrap();
        assert_eq!(seen.verdict(&made(1)).unwrap().boots, 1);
    }
}
