//! How many root disks are made at the same time, in the cluster and on a node.
//!
//! Invariant: a machine that was let in counts until its task is final, whether or not the task is in the
//! store already; with any setting at least one disk is made.
//! Failure: a pass that ends without a task gives its slot back when the reservation is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crds::{TaskKind, VirtualMachineTask};

/// Seconds after which a reservation without a task in the store counts no more.
const PATIENCE: i64 = 60;

/// Reservations that the store of tasks does not show yet. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Slots(Arc<Mutex<BTreeMap<String, Reserved>>>);

#[derive(Debug)]
struct Reserved {
    node: Option<String>,
    since: i64,
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

impl Slots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Reserved>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for the machine `uid`, on `node` once that is known; `None` when all are taken by others.
    pub(crate) fn take(
        &self,
        uid: &str,
        node: Option<&str>,
        tasks: &[Arc<VirtualMachineTask>],
        limits: Limits,
        now: i64,
    ) -> Option<Slot> {
        let mut reserved = self.lock();
        let provisions = || tasks.iter().filter(|t| t.spec.kind == TaskKind::Provision);
        let known: BTreeSet<_> = provisions().map(|t| t.spec.vm_uid.as_str()).collect();
        reserved.retain(|uid, r| !known.contains(uid.as_str()) && now - r.since < PATIENCE);
        let live = || provisions().filter(|t| !is_final(t) && t.spec.vm_uid != uid);
        let others = || reserved.iter().filter(|(other, _)| *other != uid);
        let everywhere = live().count() + others().count();
        if everywhere >= limits.cluster.max(1) {
            return None;
        }
        if let Some(node) = node {
            let here = live().filter(|t| t.spec.node_name == node).count()
                + others()
                    .filter(|(_, r)| r.node.as_deref() == Some(node))
                    .count();
            if here >= limits.node.max(1) {
                return None;
            }
        }
        let reservation = Reserved {
            node: node.map(str::to_owned),
            since: now,
        };
        reserved.insert(uid.to_owned(), reservation);
        Some(Slot {
            slots: self.clone(),
            uid: uid.to_owned(),
            is_kept: false,
        })
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
            self.slots.lock().remove(&self.uid);
        }
    }
}

fn is_final(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|s| s.state);
    state.is_some_and(crds::TaskState::is_final)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Limits = Limits {
        cluster: 1,
        node: 1,
    };

    #[test]
    fn a_slot_that_is_dropped_is_free_again() {
        let slots = Slots::default();
        let first = slots.take("a", None, &[], ONE, 0).unwrap();
        assert!(slots.take("b", None, &[], ONE, 0).is_none());
        drop(first);
        assert!(slots.take("b", None, &[], ONE, 0).is_some());
    }

    #[test]
    fn a_kept_slot_counts_for_others_only_and_not_for_ever() {
        let slots = Slots::default();
        slots.take("a", Some("n"), &[], ONE, 0).unwrap().keep();
        assert!(slots.take("b", None, &[], ONE, PATIENCE - 1).is_none());
        assert!(slots.take("a", Some("n"), &[], ONE, 1).is_some());
        slots.take("a", Some("n"), &[], ONE, 0).unwrap().keep();
        assert!(slots.take("b", None, &[], ONE, PATIENCE).is_some());
    }

    #[test]
    fn a_node_has_a_limit_of_its_own_and_zero_means_one() {
        let slots = Slots::default();
        let limits = Limits {
            cluster: 5,
            node: 0,
        };
        slots.take("a", Some("n"), &[], limits, 0).unwrap().keep();
        assert!(slots.take("b", Some("n"), &[], limits, 0).is_none());
        assert!(slots.take("b", Some("m"), &[], limits, 0).is_some());
    }
}
