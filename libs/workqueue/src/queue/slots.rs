//! One slot per known key, and the map from keys to slots.
//!
//! Invariant: the key is stored once, in its slot; the hash table holds slot numbers alone.
//! Failure: none; more than 2^32 keys at once would need 300 GB.

use std::hash::{BuildHasher, Hash};
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::links::{Link, Links, NIL};

/// Slots that are kept although no key is known.
const KEPT: usize = 4096;

/// Where a key is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not queued.
    Idle,
    /// Its time has not come.
    Waiting,
    /// Ready, in the list of its class.
    Linked,
    /// Ready but in flight, and everything before it in its class no longer exists.
    Detached,
    /// Ready, before the list of its class.
    Front,
}

impl Place {
    pub(super) fn is_ready(self) -> bool {
        matches!(self, Self::Linked | Self::Detached | Self::Front)
    }
}

/// What is known of a key.
#[derive(Debug)]
pub(super) struct Slot<K> {
    key: Option<K>,
    pub(super) priority: i64,
    /// Order within the class.
    pub(super) sequence: u64,
    /// Waiting: when it becomes ready. Ready: since when it is. In nanoseconds.
    pub(super) time: u64,
    class: Link,
    age: Link,
    /// Place among the flights, or `NIL`.
    pub(super) flight: u32,
    pub(super) place: Place,
    pub(super) failures: u8,
    /// Priority of the quiet pushes of the present flight, which count unless it fails.
    pub(super) quiet: Option<i64>,
}

impl<K> Slot<K> {
    /// Waits because it failed.
    pub(super) fn is_backing_off(&self) -> bool {
        self.place == Place::Waiting && self.failures > 0
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots<K> {
    slots: Vec<Slot<K>>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// First unused slot; the others follow by `class.after`.
    free: u32,
}

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            free: NIL,
        }
    }
}

impl<K> Index<u32> for Slots<K> {
    type Output = Slot<K>;

    fn index(&self, slot: u32) -> &Slot<K> {
        &self.slots[slot as usize]
    }
}

impl<K> IndexMut<u32> for Slots<K> {
    fn index_mut(&mut self, slot: u32) -> &mut Slot<K> {
        &mut self.slots[slot as usize]
    }
}

/// The links of the classes' lists.
pub(super) struct ClassLinks<'a, K>(&'a mut Slots<K>);
/// The links of the list by age.
pub(super) struct AgeLinks<'a, K>(&'a mut Slots<K>);

impl<K> Links for ClassLinks<'_, K> {
    fn link(&mut self, slot: u32) -> &mut Link {
        &mut self.0[slot].class
    }
}

impl<K> Links for AgeLinks<'_, K> {
    fn link(&mut self, slot: u32) -> &mut Link {
        &mut self.0[slot].age
    }
}

impl<K> Slots<K> {
    pub(super) fn classes(&mut self) -> ClassLinks<'_, K> {
        ClassLinks(self)
    }

    pub(super) fn ages(&mut self) -> AgeLinks<'_, K> {
        AgeLinks(self)
    }
}

impl<K: Hash + Eq> Slots<K> {
    /// The key's slot.
    pub(super) fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let same = |slot: &u32| self[*slot].key.as_ref() == Some(key);
        self.table.find(hash, same).copied()
    }

    /// The key's slot; a new, idle one when the key is not known.
    pub(super) fn intern(&mut self, key: K) -> u32 {
        let hash = self.hasher.hash_one(&key);
        let slots = &self.slots;
        let same = |slot: &u32| slots[*slot as usize].key.as_ref() == Some(&key);
        if let Some(slot) = self.table.find(hash, same) {
            return *slot;
        }
        let new = Slot {
            key: Some(key),
            priority: 0,
            sequence: 0,
            time: 0,
            class: Link::NONE,
            age: Link::NONE,
            flight: NIL,
            place: Place::Idle,
            failures: 0,
            quiet: None,
        };
        let slot = if self.free == NIL {
            self.slots.push(new);
            index(self.slots.len() - 1)
        } else {
            let slot = self.free;
            self.free = self[slot].class.after;
            self[slot] = new;
            slot
        };
        let slots = &self.slots;
        let hasher = &self.hasher;
        let rehash = |slot: &u32| match &slots[*slot as usize].key {
            Some(key) => hasher.hash_one(key),
            // Slots in the table have keys.
            None => 0,
        };
        self.table.insert_unique(hash, slot, rehash);
        slot
    }

    /// Gives the slot back when nothing is known of its key that matters.
    pub(super) fn release_if_unused(&mut self, slot: u32) {
        let known = &self[slot];
        if known.place != Place::Idle || known.flight != NIL || known.failures != 0 {
            return;
        }
        let Some(key) = &known.key else { return };
        let hash = self.hasher.hash_one(key);
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        if self.table.is_empty() && self.slots.len() > KEPT {
            // After a burst the memory goes back.
            self.slots = Vec::new();
            self.table = HashTable::new();
            self.free = NIL;
            return;
        }
        let free = self.free;
        let known = &mut self[slot];
        known.key = None;
        known.class.after = free;
        self.free = slot;
    }
}

impl<K: Clone> Slots<K> {
    /// A copy of the key of a slot in use.
    pub(super) fn key(&self, slot: u32) -> Option<K> {
        self[slot].key.clone()
    }
}

/// A slot's or flight's number.
#[allow(
    clippy::cast_possible_truncation,
    reason = "2^32 slots do not fit into memory"
)]
pub(super) fn index(number: usize) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots for so many keys, all of them released but the last `left`.
    fn released(keys: usize, left: usize) -> Slots<usize> {
        let mut slots = Slots::default();
        let all: Vec<u32> = (0..keys).map(|key| slots.intern(key)).collect();
        for slot in &all[..keys - left] {
            slots.release_if_unused(*slot);
        }
        slots
    }

    #[test]
    fn a_released_slot_serves_the_next_key() {
        let mut slots = released(3, 2);
        assert_eq!(slots.find(&0), None);
        assert_eq!(slots.intern(7), 0);
        assert_eq!((slots.slots.len(), slots.free), (3, NIL));
    }

    #[test]
    fn memory_goes_back_when_a_burst_is_over() {
        let kept = |keys, left| released(keys, left).slots.len();
        assert_eq!(kept(KEPT, 0), KEPT);
        assert_eq!(kept(KEPT + 1, 1), KEPT + 1);
        assert_eq!(kept(KEPT + 1, 0), 0);
    }
}
