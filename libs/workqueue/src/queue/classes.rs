//! Ready keys by priority.
//!
//! Invariant: within a class keys leave in the order of their sequence numbers; keys in flight are
//! passed over and keep their place.
//! Failure: none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::links::{List, NIL};
use super::slots::{Place, Slots};

/// Keys of one priority.
#[derive(Debug, Default)]
struct ReadyClass {
    /// Keys that returned from their flight after they had reached the list's head: they go before
    /// the list.
    front: BTreeMap<u64, u32>,
    list: List,
}

/// Classes with keys, the highest priority first.
#[derive(Debug, Default)]
pub(super) struct Classes {
    classes: BTreeMap<Reverse<i64>, ReadyClass>,
}

impl Classes {
    /// Appends a slot to the list of its class.
    pub(super) fn append<K>(&mut self, slots: &mut Slots<K>, slot: u32) {
        slots[slot].place = Place::Linked;
        let class = self
            .classes
            .entry(Reverse(slots[slot].priority))
            .or_default();
        class.list.push_back(&mut slots.classes(), slot);
    }

    /// Puts a detached slot where its sequence number belongs: before the list.
    pub(super) fn put_before<K>(&mut self, slots: &mut Slots<K>, slot: u32) {
        slots[slot].place = Place::Front;
        let class = self
            .classes
            .entry(Reverse(slots[slot].priority))
            .or_default();
        class.front.insert(slots[slot].sequence, slot);
    }

    /// Takes a ready slot out of its class.
    pub(super) fn remove<K>(&mut self, slots: &mut Slots<K>, slot: u32) {
        let priority = Reverse(slots[slot].priority);
        let Some(class) = self.classes.get_mut(&priority) else {
            return;
        };
        match slots[slot].place {
            Place::Front => {
                class.front.remove(&slots[slot].sequence);
            }
            Place::Linked => class.list.unlink(&mut slots.classes(), slot),
            Place::Detached | Place::Idle | Place::Waiting => {}
        }
        if class.front.is_empty() && class.list.head().is_none() {
            self.classes.remove(&priority);
        }
    }

    /// Takes the first slot that is not in flight, of the highest priority below `limit`.
    pub(super) fn take_first<K>(
        &mut self,
        slots: &mut Slots<K>,
        limit: Option<i64>,
    ) -> Option<u32> {
        let below = limit.map_or(Bound::Unbounded, |limit| Bound::Excluded(Reverse(limit)));
        loop {
            let (priority, class) = self.classes.range_mut((below, Bound::Unbounded)).next()?;
            let priority = *priority;
            let found = class.take_first(slots);
            if class.front.is_empty() && class.list.head().is_none() {
                self.classes.remove(&priority);
            }
            if found.is_some() {
                return found;
            }
        }
    }
}

impl ReadyClass {
    /// When this finds nothing the class is empty: what it met was set aside.
    fn take_first<K>(&mut self, slots: &mut Slots<K>) -> Option<u32> {
        if let Some((_, slot)) = self.front.pop_first() {
            return Some(slot);
        }
        while let Some(slot) = self.list.head() {
            self.list.unlink(&mut slots.classes(), slot);
            if slots[slot].flight == NIL {
                return Some(slot);
            }
            slots[slot].place = Place::Detached;
        }
        None
    }
}
