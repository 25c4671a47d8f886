//! What is on the nodes, whatever objects say: disks with their snapshots, running guests, and the target of
//! backups.
//!
//! Invariant: a disk is on one node, is made once, and no two guests have it; memory that was saved is
//! resumed or discarded, and not lost; no disk is reverted under a guest. What would break this is refused and
//! is the text of a finding.
//! Failure: that text.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::{Layer, Layers};
use super::target::Target;

pub(super) const NODE_NAMES: [&str; 2] = ["n1", "n2"];

#[derive(Default)]
pub(super) struct Nodes {
    /// Nodes that do not reach the API server.
    silent: BTreeSet<String>,
    /// By UID.
    disks: BTreeMap<String, Disk>,
    /// UIDs of all disks that there have ever been.
    made: BTreeSet<String>,
    /// By UID of their pod.
    guests: BTreeMap<String, Guest>,
    pub(super) target: Target,
}

struct Disk {
    node: String,
    has_memory: bool,
    layers: Layers,
}

struct Guest {
    node: String,
    disk: String,
    end: Option<End>,
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) code: i32,
    pub(super) reason: &'static str,
}

impl End {
    pub(super) const SHUTDOWN: Self = Self::with(0, "GuestShutdown");
    pub(super) const STOPPED: Self = Self::with(0, "Stopped");
    pub(super) const SAVED: Self = Self::with(0, "Saved");
    pub(super) const CRASHED: Self = Self::with(1, "Error");

    const fn with(code: i32, reason: &'static str) -> Self {
        Self { code, reason }
    }
}

/// What became of a start.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    Runs,
    /// Another guest of this node has the disk still.
    Waits,
    /// It must not have been requested.
    Refused(String),
}

impl Nodes {
    pub(super) fn reports(&self, node: &str) -> bool {
        !self.silent.contains(node)
    }

    pub(super) fn silence(&mut self, node: &str) {
        self.silent.insert(node.to_owned());
    }

    pub(super) fn reach_again(&mut self, node: &str) {
        self.silent.remove(node);
    }

    pub(super) fn make_disk(&mut self, node: &str, disk: &str) -> Result<(), String> {
        match self.disks.get(disk) {
            Some(there) if there.node == node => return Ok(()),
            Some(there) => return Err(format!("disk {disk} of {} made on {node}", there.node)),
            None => {}
        }
        if !self.made.insert(disk.to_owned()) {
            return Err(format!("disk {disk} made again, on {node}"));
        }
        let made = Disk {
            node: node.to_owned(),
            has_memory: false,
            layers: Layers::default(),
        };
        self.disks.insert(disk.to_owned(), made);
        Ok(())
    }

    pub(super) fn delete_disk(&mut self, disk: &str) -> Result<(), String> {
        if let Some(guest) = self.guests.values().find(|guest| guest.disk == disk) {
            return Err(format!(
                "disk {disk} deleted under a guest of {}",
                guest.node
            ));
        }
        self.disks.remove(disk);
        Ok(())
    }

    pub(super) fn has_disk(&self, disk: &str) -> bool {
        self.disks.contains_key(disk)
    }

    pub(super) fn has_memory(&self, disk: &str) -> bool {
        self.disks.get(disk).is_some_and(|disk| disk.has_memory)
    }

    /// A pod's guest starts; `resumes`: from saved memory.
    pub(super) fn start(&mut self, pod: &str, node: &str, disk: &str, resumes: bool) -> Start {
        let Some(found) = self.disks.get_mut(disk).filter(|found| found.node == node) else {
            return Start::Refused(format!("a guest of {node} without its disk {disk}"));
        };
        let mut others = self.guests.values().filter(|guest| guest.disk == disk);
        match others.next() {
            Some(other) if other.node == node => return Start::Waits,
            Some(other) => {
                let both = format!("{} and {node}", other.node);
                return Start::Refused(format!("guests with disk {disk} on {both}"));
            }
            None => {}
        }
        if found.has_memory && !resumes {
            return Start::Refused(format!("a start drops the saved memory of disk {disk}"));
        }
        found.has_memory = false;
        let guest = Guest {
            node: node.to_owned(),
            disk: disk.to_owned(),
            end: None,
        };
        self.guests.insert(pod.to_owned(), guest);
        Start::Runs
    }

    /// A guest ends; its pod is to learn of it.
    pub(super) fn end_guest(&mut self, disk: &str, end: End) -> bool {
        let mut all = self.guests.values_mut();
        let running = all.find(|guest| guest.disk == disk && guest.end.is_none());
        running.is_some_and(|guest| guest.end.replace(end).is_none())
    }

    /// The memory of a guest is saved, and it ends.
    pub(super) fn save(&mut self, disk: &str) -> bool {
        let is_saved = self.end_guest(disk, End::SAVED);
        if let Some(disk) = self.disks.get_mut(disk).filter(|_| is_saved) {
            disk.has_memory = true;
        }
        is_saved
    }

    pub(super) fn discard(&mut self, disk: &str) {
        if let Some(disk) = self.disks.get_mut(disk) {
            disk.has_memory = false;
        }
    }

    /// Takes a snapshot, once; `None`: the node has no such disk, or its guest no memory.
    pub(super) fn take_snapshot(&mut self, disk: &str, uid: &str, memory: bool) -> Option<Layer> {
        let runs = self.guests_with(disk) > 0;
        let layers = &mut self.disks.get_mut(disk)?.layers;
        let is_taken = layers.find(uid).is_some();
        let is_able = is_taken || runs || !memory;
        is_able.then(|| layers.take(uid, runs, memory))
    }

    /// The disk becomes that of a snapshot, with its memory or without any.
    pub(super) fn revert(&mut self, disk: &str, uid: &str, memory: bool) -> Result<(), String> {
        if self.guests.values().any(|guest| guest.disk == disk) {
            return Err(format!("disk {disk} reverted under a guest"));
        }
        let Some(found) = self.disks.get_mut(disk) else {
            return Err(format!("disk {disk} reverted, which is not there"));
        };
        if found.has_memory {
            return Err(format!("a revert drops the saved memory of disk {disk}"));
        }
        found.layers.revert(uid, memory)?;
        found.has_memory = memory;
        Ok(())
    }

    pub(super) fn delete_snapshot(&mut self, disk: &str, uid: &str) {
        if let Some(disk) = self.disks.get_mut(disk) {
            disk.layers.delete(uid);
        }
    }

    /// The snapshots of a disk.
    pub(super) fn layers(&self, disk: &str) -> Option<&Layers> {
        self.disks.get(disk).map(|disk| &disk.layers)
    }

    /// How the guest of a pod has ended, once it has.
    pub(super) fn end(&self, pod: &str) -> Option<End> {
        self.guests.get(pod).and_then(|guest| guest.end)
    }

    /// Nothing is left of the guest of a pod.
    pub(super) fn remove_guest(&mut self, pod: &str) {
        self.guests.remove(pod);
    }

    /// How many guests have the disk and have not ended.
    pub(super) fn guests_with(&self, disk: &str) -> usize {
        let all = self.guests.values();
        all.filter(|guest| guest.disk == disk && guest.end.is_none())
            .count()
    }
}

#[test]
fn what_must_never_be_is_noticed() {
    let mut nodes = Nodes::default();
    nodes.make_disk("n1", "d").unwrap();
    nodes.make_disk("n1", "d").unwrap();
    nodes.make_disk("n2", "d").unwrap_err();
    assert!(matches!(
        nodes.start("p", "n2", "d", false),
        Start::Refused(_)
    ));
    assert_eq!(nodes.start("p", "n1", "d", false), Start::Runs);
    assert_eq!(nodes.start("q", "n1", "d", false), Start::Waits);
    nodes.delete_disk("d").unwrap_err();
    assert!(nodes.save("d") && !nodes.save("d"));
    nodes.remove_guest("p");
    assert!(matches!(
        nodes.start("q", "n1", "d", false),
        Start::Refused(_)
    ));
    assert_eq!(nodes.start("q", "n1", "d", true), Start::Runs);
    assert!(nodes.take_snapshot("d", "s", true).unwrap().is_of_running);
    nodes.revert("d", "s", true).unwrap_err();
    nodes.remove_guest("q");
    assert_eq!(nodes.take_snapshot("d", "t", true), None);
    nodes.revert("d", "s", true).unwrap();
    nodes.revert("d", "s", true).unwrap_err();
    nodes.discard("d");
    nodes.delete_disk("d").unwrap();
    nodes.revert("d", "s", false).unwrap_err();
    nodes.make_disk("n1", "d").unwrap_err();
}
