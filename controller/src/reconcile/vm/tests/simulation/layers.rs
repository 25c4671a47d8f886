//! The snapshots of one disk, as its node has them.
//!
//! Invariant: a snapshot is taken once, as of then; what descends from one that is deleted descends from its
//! parent.
//! Failure: what must not have been requested, in words.

use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Layers {
    /// By UID.
    taken: BTreeMap<String, Layer>,
    /// That from which the disk descends.
    current: Option<String>,
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) parent: Option<String>,
    pub(super) is_of_running: bool,
    pub(super) has_memory: bool,
}

impl Layers {
    pub(super) fn take(&mut self, uid: &str, is_of_running: bool, has_memory: bool) -> Layer {
        let layer = Layer {
            parent: self.current.clone(),
            is_of_running,
            has_memory,
        };
        if !self.taken.contains_key(uid) {
            self.current = Some(uid.to_owned());
        }
        let taken = self.taken.entry(uid.to_owned()).or_insert(layer);
        taken.clone()
    }

    pub(super) fn revert(&mut self, uid: &str, with_memory: bool) -> Result<(), String> {
        let Some(layer) = self.taken.get(uid) else {
            return Err(format!("a revert to snapshot {uid}, which is not there"));
        };
        if with_memory && !layer.has_memory {
            return Err(format!(
                "a revert to the memory of snapshot {uid}, which has none"
            ));
        }
        self.current = Some(uid.to_owned());
        Ok(())
    }

    pub(super) fn delete(&mut self, uid: &str) {
        let Some(gone) = self.taken.remove(uid) else {
            return;
        };
        let children = self.taken.values_mut().map(|layer| &mut layer.parent);
        for parent in children.chain([&mut self.current]) {
            if parent.as_deref() == Some(uid) {
                parent.clone_from(&gone.parent);
            }
        }
    }

    pub(super) fn find(&self, uid: &str) -> Option<&Layer> {
        self.taken.get(uid)
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.taken.keys()
    }

    pub(super) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }
}

#[test]
fn what_descends_from_a_snapshot_that_is_deleted_descends_from_its_parent() {
    let mut layers = Layers::default();
    layers.take("a", true, false);
    layers.take("b", true, true);
    let again = layers.take("a", false, true);
    assert_eq!(
        (again.parent, again.has_memory),
        (None, false),
        "as of then"
    );
    assert_eq!(layers.current(), Some("b"));
    layers.revert("a", true).unwrap_err();
    layers.revert("c", false).unwrap_err();
    layers.delete("b");
    assert_eq!(layers.current(), Some("a"));
    layers.take("c", true, true);
    layers.delete("a");
    assert_eq!(layers.find("c").unwrap().parent, None);
    layers.revert("c", true).unwrap();
}
