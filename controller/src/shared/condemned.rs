//! Machines that replica sets have deleted and that the store does not show as such yet.
//!
//! Invariant: an entry ends when the store has no living machine with this UID. A restart forgets all of
//! them: the stores are filled by then.
//! Failure: none.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::stores::Key;

/// UIDs of machines by set. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Condemned(Arc<Mutex<HashMap<Key, BTreeSet<String>>>>);

impl Condemned {
    /// The machine with this UID was deleted.
    pub fn add(&self, set: &Key, uid: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(set.clone()).or_default().insert(uid);
    }

    /// Those of `existing` that were deleted; forgets the others.
    #[must_use]
    pub fn still(&self, set: &Key, existing: &BTreeSet<String>) -> BTreeSet<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(uids) = all.get_mut(set) else {
            return BTreeSet::new();
        };
        uids.retain(|uid| existing.contains(uid));
        let left = uids.clone();
        if left.is_empty() {
            all.remove(set);
        }
        left
    }

    /// The set no longer exists.
    pub fn forget(&self, set: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_machine_is_remembered_until_the_store_no_longer_has_it() {
        let all = Condemned::default();
        let set = Key::new("ns", "web");
        let uids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        all.add(&set, "a".to_owned());
        all.add(&set, "b".to_owned());
        assert_eq!(all.still(&set, &uids(&["a", "b", "c"])), uids(&["a", "b"]));
        assert_eq!(all.still(&set, &uids(&["b", "c"])), uids(&["b"]));
        assert_eq!(
            all.still(&set, &uids(&["a", "b"])),
            uids(&["b"]),
            "a was gone"
        );
        assert_eq!(all.still(&Key::new("ns", "db"), &uids(&["b"])), uids(&[]));
        assert_eq!(all.still(&set, &uids(&[])), uids(&[]));
        assert!(all.0.lock().unwrap().is_empty());
        all.add(&set, "a".to_owned());
        all.forget(&set);
        assert_eq!(all.still(&set, &uids(&["a"])), uids(&[]));
    }
}
