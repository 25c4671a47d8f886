//! Who is filed under what.
//!
//! Invariant: both directions say the same.
//! Failure: none.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::stores::Key;

/// Who is filed under what, both ways.
#[derive(Debug)]
pub(super) struct Table<R> {
    under: HashMap<R, BTreeSet<Key>>,
    of: HashMap<Key, BTreeSet<R>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self {
            under: HashMap::new(),
            of: HashMap::new(),
        }
    }
}

impl<R: Clone + Eq + Hash + Ord> Table<R> {
    /// Files `key` under exactly these; under none when there are none.
    pub(super) fn set(&mut self, key: &Key, new: BTreeSet<R>) {
        let old = self.of.remove(key).unwrap_or_default();
        for gone in old.difference(&new) {
            if let Some(keys) = self.under.get_mut(gone) {
                keys.remove(key);
                if keys.is_empty() {
                    self.under.remove(gone);
                }
            }
        }
        for added in new.difference(&old) {
            let keys = self.under.entry(added.clone()).or_default();
            keys.insert(key.clone());
        }
        if !new.is_empty() {
            self.of.insert(key.clone(), new);
        }
    }

    pub(super) fn get(&self, under: &R) -> Vec<Key> {
        let keys = self.under.get(under);
        keys.map(|keys| keys.iter().cloned().collect())
            .unwrap_or_default()
    }
}
