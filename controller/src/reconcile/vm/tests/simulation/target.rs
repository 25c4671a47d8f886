//! The target of backups, as nodes have it.
//!
//! Invariant: a backup is made once, as of then; one that another builds upon stays.
//! Failure: what a node refuses, in words.

use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Target {
    /// By UID.
    stored: BTreeMap<String, Stored>,
    /// By disk: the last backup that was made of it.
    newest: BTreeMap<String, String>,
}

/// One backup.
#[derive(Clone)]
pub(super) struct Stored {
    /// The one that it builds upon.
    pub(super) parent: Option<String>,
}

impl Target {
    /// Makes a backup of a disk; of all of it, if it `is_full` or nothing is known of an earlier one.
    pub(super) fn make(&mut self, disk: &str, uid: &str, is_full: bool) -> Stored {
        let newest = self.newest.get(disk);
        let known = newest.filter(|newest| self.stored.contains_key(*newest));
        let stored = Stored {
            parent: known.filter(|_| !is_full).cloned(),
        };
        if !self.stored.contains_key(uid) {
            self.newest.insert(disk.to_owned(), uid.to_owned());
        }
        let stored = self.stored.entry(uid.to_owned()).or_insert(stored);
        stored.clone()
    }

    pub(super) fn remove(&mut self, uid: &str) -> Result<(), String> {
        if let Some(child) = self.children(uid).next() {
            return Err(format!("backup {child} builds upon it"));
        }
        self.stored.remove(uid);
        Ok(())
    }

    /// UIDs of those that build upon it.
    pub(super) fn children(&self, uid: &str) -> impl Iterator<Item = &String> {
        let all = self.stored.iter();
        let children = all.filter(move |(_, one)| one.parent.as_deref() == Some(uid));
        children.map(|(child, _)| child)
    }

    /// Whether it is there with all that it builds upon.
    pub(super) fn is_whole(&self, uid: &str) -> bool {
        let Some(stored) = self.stored.get(uid) else {
            return false;
        };
        let parent = stored.parent.as_deref();
        parent.is_none_or(|parent| self.is_whole(parent))
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.stored.contains_key(uid)
    }
}

#[test]
fn a_backup_goes_after_those_that_build_upon_it() {
    let mut target = Target::default();
    assert_eq!(target.make("d", "a", false).parent, None);
    assert_eq!(target.make("d", "b", false).parent.as_deref(), Some("a"));
    assert_eq!(target.make("d", "a", false).parent, None, "as of then");
    assert_eq!(target.make("d", "c", true).parent, None);
    target.remove("a").unwrap_err();
    assert!(target.is_whole("b") && target.has("a") && !target.is_whole("x"));
    target.remove("b").unwrap();
    target.remove("a").unwrap();
    target.remove("c").unwrap();
    assert_eq!(
        target.make("d", "e", false).parent,
        None,
        "nothing is known"
    );
}
