//! What the guests themselves saw, read from their consoles' logs.
//!
//! Invariant: a log is read to its end before its pod can be removed for long: kubelet keeps the logs of a pod
//! as long as its object exists, and each look remembers what it saw.
//! Failure: a guest that saw another machine on its disk, or a disk that counted one boot twice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::stack::Stack;

/// Collects what consoles say.
#[derive(Debug)]
pub(super) struct Witness {
    logs: PathBuf,
    /// By log file: the boot that its guest counted, if it got that far.
    boots: RefCell<BTreeMap<PathBuf, u64>>,
}

impl Witness {
    pub(super) fn new(stack: &Stack) -> Self {
        Self {
            logs: stack.dir().join("logs/pods"),
            boots: RefCell::default(),
        }
    }

    /// Reads every log that is there.
    pub(super) fn look(&self) -> Result<()> {
        for file in logs(&self.logs) {
            // Between listing and reading kubelet may remove it.
            let Ok(bytes) = fs::read(&file) else { continue };
            let text = String::from_utf8_lossy(&bytes);
            let taken = text.lines().find(|line| line.contains("VMLET-DISK-TAKEN"));
            ensure!(
                taken.is_none(),
                "two machines on one disk: {}: {taken:?}",
                file.display()
            );
            for line in text.lines() {
                let Some((_, count)) = line.split_once("VMLET-BOOTS ") else {
                    continue;
                };
                if let Ok(count) = count.trim().parse() {
                    self.boots.borrow_mut().insert(file.clone(), count);
                }
            }
        }
        Ok(())
    }

    /// Looks once more; returns how many boots were seen. The same count in two logs of one machine would be
    /// two boots from one state of its disk.
    pub(super) fn verdict(&self) -> Result<u64> {
        self.look()?;
        let boots = self.boots.borrow();
        let mut seen: BTreeMap<(String, u64), &Path> = BTreeMap::new();
        for (file, count) in &*boots {
            let machine = machine_of(file);
            if let Some(other) = seen.insert((machine.clone(), *count), file) {
                ensure!(
                    false,
                    "{machine} counted boot {count} twice: {} and {}",
                    other.display(),
                    file.display()
                );
            }
        }
        Ok(seen.len() as u64)
    }
}

/// `NAMESPACE_POD_UID/CONTAINER/N.log` below `root`.
fn logs(root: &Path) -> Vec<PathBuf> {
    let below = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default()
    };
    below(root)
        .iter()
        .flat_map(|pod| below(pod))
        .flat_map(|container| below(&container))
        .filter(|file| file.extension().is_some_and(|word| word == "log"))
        .collect()
}

/// The second word of the pod's folder.
fn machine_of(file: &Path) -> String {
    file.ancestors()
        .nth(2)
        .and_then(|pod| pod.file_name()?.to_str()?.split('_').nth(1))
        .unwrap_or_default()
        .to_owned()
}
