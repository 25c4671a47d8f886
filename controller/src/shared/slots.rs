//! Create slots: root disks that are created concurrently, in the cluster and on a node, and the
//! order of waiting machines.
//!
//! Invariant: a machine that was let in counts until its task is final, whether or not the task is
//! in the store already; with any setting at least one disk is made. Who found no slot is woken, in
//! the order of the first attempts, when there is one for him.
//! Failure: a pass that ends without a task gives its slot back when the reservation is dropped;
//! one that was woken and never came loses his turn after a minute; tasks of a node that is away
//! count for that node only, so that no more than its share begin when it is back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crds::{TaskKind, VirtualMachineTask};
use tokio::sync::mpsc;

use crate::stores::Key;

/// Seconds after which a reservation without a task in the store counts no more.
const TIMEOUT: i64 = 60;

/// Reservations that the store of tasks does not show yet, and who waits. Clones share their
/// content.
#[derive(Clone, Debug, Default)]
pub struct Slots(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By UID.
    reserved: BTreeMap<String, Reserved>,
    /// In the order of the first attempts.
    waiting: BTreeMap<u64, Waiting>,
    /// Places of `waiting` by UID.
    places: HashMap<String, u64>,
    next: u64,
    wake: Option<mpsc::Sender<Key>>,
}

#[derive(Debug)]
struct Reserved {
    node: Option<String>,
    since: i64,
}

#[derive(Debug)]
struct Waiting {
    uid: String,
    key: Key,
    node: Option<String>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRequest<'a> {
    pub(crate) uid: &'a str,
    pub(crate) key: &'a Key,
    /// Where the disk will be, once that is known.
    pub(crate) node: Option<&'a str>,
}

/// A slot that was taken; given back when dropped, unless it was kept.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    uid: String,
    is_kept: bool,
}

/// What is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) cluster: usize,
    pub(crate) node: usize,
}

/// What is being made.
#[derive(Clone, Copy)]
pub(crate) struct Made<'a> {
    /// All tasks.
    pub(crate) tasks: &'a [Arc<VirtualMachineTask>],
    /// Whether the node works on its tasks.
    pub(crate) works: &'a dyn Fn(&str) -> bool,
}

/// Slots in use.
#[derive(Debug, Default)]
struct Used {
    everywhere: usize,
    nodes: HashMap<String, usize>,
}

impl Used {
    fn add(&mut self, node: Option<&str>) {
        self.everywhere += 1;
        if let Some(node) = node {
            self.add_here(node);
        }
    }

    /// Counts for the node alone.
    fn add_here(&mut self, node: &str) {
        *self.nodes.entry(node.to_owned()).or_default() += 1;
    }

    fn is_full(&self, limits: Limits) -> bool {
        self.everywhere >= limits.cluster.max(1)
    }

    fn has_room(&self, node: Option<&str>, limits: Limits) -> bool {
        let here = node.and_then(|node| self.nodes.get(node));
        !self.is_full(limits) && here.is_none_or(|used| *used < limits.node.max(1))
    }
}

impl State {
    /// What all but `uid` use.
    fn used(&mut self, uid: &str, made: Made<'_>, now: i64) -> Used {
        let kinds = [
            TaskKind::Provision,
            TaskKind::CloneDisk,
            TaskKind::RestoreBackup,
        ];
        let of_disk = |t: &&Arc<VirtualMachineTask>| kinds.contains(&t.spec.kind);
        let provisions = || made.tasks.iter().filter(of_disk);
        let known: BTreeSet<_> = provisions().map(|t| t.spec.vm_uid.as_str()).collect();
        self.reserved
            .retain(|uid, r| !known.contains(uid.as_str()) && now - r.since < TIMEOUT);
        let mut used = Used::default();
        for task in provisions().filter(|t| !t.is_final() && t.spec.vm_uid != uid) {
            let node = task.spec.node_name.as_str();
            if (made.works)(node) {
                used.add(Some(node));
            } else {
                used.add_here(node);
            }
        }
        for (_, reserved) in self.reserved.iter().filter(|(other, _)| *other != uid) {
            used.add(reserved.node.as_deref());
        }
        used
    }

    fn reserve(&mut self, uid: &str, node: Option<&str>, since: i64) {
        let node = node.map(str::to_owned);
        self.reserved
            .insert(uid.to_owned(), Reserved { node, since });
    }

    fn line_up(&mut self, request: SlotRequest<'_>) {
        let next = self.next;
        let place = *self.places.entry(request.uid.to_owned()).or_insert(next);
        self.next += u64::from(place == next);
        let waiting = Waiting {
            uid: request.uid.to_owned(),
            key: request.key.clone(),
            node: request.node.map(str::to_owned),
        };
        self.waiting.insert(place, waiting);
    }

    fn leave(&mut self, uid: &str) {
        if let Some(place) = self.places.remove(uid) {
            self.waiting.remove(&place);
        }
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys of machines that a slot is reserved for are sent here; each should be looked at.
    pub fn wake_by(&self, sender: mpsc::Sender<Key>) {
        self.lock().wake = Some(sender);
    }

    /// A slot; `None` when all are taken by others: the machine is then woken when it is its turn.
    pub(crate) fn take(
        &self,
        request: SlotRequest<'_>,
        made: Made<'_>,
        limits: Limits,
        now: i64,
    ) -> Option<Slot> {
        let mut state = self.lock();
        let used = state.used(request.uid, made, now);
        if !used.has_room(request.node, limits) {
            state.line_up(request);
            return None;
        }
        state.leave(request.uid);
        state.reserve(request.uid, request.node, now);
        Some(Slot {
            slots: self.clone(),
            uid: request.uid.to_owned(),
            is_kept: false,
        })
    }

    /// Wakes those for whom there is a slot by now, as long as they still want one.
    pub(crate) fn pass_on(
        &self,
        tasks: impl FnOnce() -> Vec<Arc<VirtualMachineTask>>,
        works: &dyn Fn(&str) -> bool,
        wants: impl Fn(&Key, &str) -> bool,
        limits: Limits,
        now: i64,
    ) {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            return;
        }
        let Some(wake) = state.wake.clone() else {
            return;
        };
        let tasks = &*tasks();
        let mut used = state.used("", Made { tasks, works }, now);
        let mut gone = Vec::new();
        let mut woken = Vec::new();
        for waiting in state.waiting.values() {
            if used.is_full(limits) {
                break;
            }
            if !wants(&waiting.key, &waiting.uid) {
                gone.push(waiting.uid.clone());
                continue;
            }
            let node = waiting.node.as_deref();
            // A machine that cannot be notified now stays in the line.
            if used.has_room(node, limits) && wake.try_send(waiting.key.clone()).is_ok() {
                used.add(node);
                woken.push((waiting.uid.clone(), waiting.node.clone()));
            }
        }
        for uid in &gone {
            state.leave(uid);
        }
        for (uid, node) in &woken {
            state.leave(uid);
            state.reserve(uid, node.as_deref(), now);
        }
    }
}

impl Slot {
    /// The task was written: the slot counts until the task is final.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_kept {
            self.slots.lock().reserved.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests;
