//! Checks which guest used which disk: the guests' own counters, and the emulators with a disk
//! open.
//!
//! The test guest gives its disk a name at its first boot (`VMLET-DISK`), counts boots on it
//! (`VMLET-BOOTS`), and writes `VMLET-DISK-TAKEN` when another guest writes to it.
//!
//! Invariant: it reads every second until it is dropped, so that no log is removed unread;
//! each look remembers what it saw.
//! Failure: two machines on one disk, a disk that counted one boot twice, or a machine with a
//! second disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use crate::stack::Stack;

const EVERY: Duration = Duration::from_secs(1);

/// Looks in a thread of its own.
#[derive(Debug)]
pub(super) struct Witness {
    thread: JoinHandle<Result<Seen>>,
    stop: Sender<()>,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// By log file: the disk and the boot that its guest counted, if it got that far.
    boots: BTreeMap<PathBuf, Boot>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Boot {
    disk: String,
    count: u64,
}

/// What the witness reports in the end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Testimony {
    pub(super) boots: usize,
    pub(super) disks: usize,
}

impl Witness {
    pub(super) fn new(stack: &Stack) -> Self {
        let dir = stack.dir().to_owned();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || watch(&dir, &stopped));
        Self { thread, stop }
    }

    /// Something was found: the verdict states what.
    pub(super) fn has_found(&self) -> bool {
        self.thread.is_finished()
    }

    /// Looks once more. `creations`: how many disks the machine of a name may have had.
    pub(super) fn verdict(self, creations: &BTreeMap<String, u32>) -> Result<Testimony> {
        drop(self.stop);
        let seen = self
            .thread
            .join()
            .map_err(|_| anyhow!("the witness died"))??;
        seen.verdict(creations)
    }
}

fn watch(dir: &Path, stopped: &Receiver<()>) -> Result<Seen> {
    let mut seen = Seen::default();
    loop {
        let last = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
        emulators(dir)?;
        for file in logs(&dir.join("logs/pods")) {
            // Between listing and reading kubelet may remove it.
            if let Ok(bytes) = fs::read(&file) {
                seen.read(file, &String::from_utf8_lossy(&bytes))?;
            }
        }
        if last {
            return Ok(seen);
        }
    }
}

impl Seen {
    fn read(&mut self, file: PathBuf, text: &str) -> Result<()> {
        let taken = text.lines().find(|line| line.contains("VMLET-DISK-TAKEN"));
        if let Some(line) = taken {
            bail!("two machines on one disk: {}: {line}", file.display());
        }
        let reported = |word| text.lines().find_map(|line| line.split_once(word));
        let disk = reported("VMLET-DISK ").map(|(_, disk)| disk.trim());
        let count = reported("VMLET-BOOTS ").and_then(|(_, count)| count.trim().parse().ok());
        if let (Some(disk), Some(count)) = (disk, count) {
            let disk = disk.to_owned();
            self.boots.insert(file, Boot { disk, count });
        }
        Ok(())
    }

    /// The same count twice would be two boots from one state of a disk.
    fn verdict(&self, creations: &BTreeMap<String, u32>) -> Result<Testimony> {
        let mut boots: BTreeMap<&Boot, &Path> = BTreeMap::new();
        let mut disks: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (file, boot) in &self.boots {
            if let Some(other) = boots.insert(boot, file) {
                let (one, two) = (other.display(), file.display());
                bail!("{boot:?} was counted twice: {one} and {two}");
            }
            disks
                .entry(machine_of(file))
                .or_default()
                .insert(&boot.disk);
        }
        for (machine, disks) in &disks {
            let created = creations.get(machine).copied().unwrap_or_default() as usize;
            ensure!(
                disks.len() <= created,
                "{machine} was made {created} times and had the disks {disks:?}"
            );
        }
        Ok(Testimony {
            boots: boots.len(),
            disks: disks.values().map(BTreeSet::len).sum(),
        })
    }
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

    fn boot(disk: &str, count: u32) -> String {
        format!("t stdout F VMLET-DISK {disk}\nt stdout F VMLET-BOOTS {count}\n")
    }

    fn seen(logs: &[(&str, String)]) -> Result<Seen> {
        let mut seen = Seen::default();
        for (pod, text) in logs {
            seen.read(log(pod), text)?;
        }
        Ok(seen)
    }

    fn creations(count: u32) -> BTreeMap<String, u32> {
        [("vm".to_owned(), count)].into()
    }

    #[test]
    fn boots_of_one_disk_and_a_disk_for_each_birth_are_fine() {
        let logs = [
            ("vm_1", boot("a", 1)),
            ("vm_2", boot("a", 2)),
            ("vm_3", boot("b", 1)),
            ("vm_4", "t stdout F VMLET-TICK 9 uptime=9.5\n".to_owned()),
        ];
        let reported = seen(&logs).unwrap().verdict(&creations(2)).unwrap();
        assert_eq!((reported.boots, reported.disks), (3, 2));
    }

    #[test]
    fn a_boot_that_two_logs_count_is_found() {
        let logs = [("vm_1", boot("a", 1)), ("vm_2", boot("a", 1))];
        let error = seen(&logs).unwrap().verdict(&creations(1)).unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
    }

    #[test]
    fn a_recreated_disk_is_detected() {
        let logs = [("vm_1", boot("a", 1)), ("vm_2", boot("b", 1))];
        let error = seen(&logs).unwrap().verdict(&creations(1)).unwrap_err();
        assert!(error.to_string().contains("was made 1 times"), "{error}");
    }

    #[test]
    fn a_guest_that_lost_its_disk_is_found() {
        let logs = [("vm_1", "t stdout F VMLET-DISK-TAKEN by x\n".to_owned())];
        let error = seen(&logs).unwrap_err();
        assert!(error.to_string().contains("two machines"), "{error}");
    }

    #[test]
    fn a_rotated_log_keeps_its_earlier_lines() {
        let mut seen = seen(&[("vm_1", boot("a", 1))]).unwrap();
        seen.read(log("vm_1"), "t stdout F VMLET-TICK 900 uptime=900.5\n")
            .unwrap();
        assert_eq!(seen.verdict(&creations(1)).unwrap().boots, 1);
    }
}
