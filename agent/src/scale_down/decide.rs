//! Decides which disks count, and which annotations of a Node change: pure.
//!
//! Invariant: a key is removed only when the record names it and its value is ours; the record
//! names a key only when it was absent before.
//! Failure: none; a record that was edited by hand counts as far as it names our keys.

use std::collections::{BTreeMap, BTreeSet};

use crds::names;
use nodeapi::v1::Disk;

/// What autoscalers read on a Node, and the only value that counts for them.
const KEYS: [&str; 2] = [names::SCALE_DOWN_DISABLED, names::DO_NOT_DISRUPT];
const VALUE: &str = "true";

/// Keys with their new values; none removes the key.
pub(super) type Changes = BTreeMap<&'static str, Option<String>>;

/// How many disks a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskCount {
    /// All of them. Also one that is being made, one without a machine, and one whose record cannot be
    /// read has data that are lost with the node.
    pub(crate) all: u32,
    /// Those whose record cannot be read.
    pub(crate) unreadable: u32,
}

pub(super) fn count(disks: &[Disk]) -> DiskCount {
    let bounded = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let unreadable = disks.iter().filter(|disk| !disk.unreadable.is_empty());
    DiskCount {
        all: bounded(disks.len()),
        unreadable: bounded(unreadable.count()),
    }
}

/// What is to be changed on a Node with these annotations.
pub(super) fn changes(found: &BTreeMap<String, String>, has_disks: bool) -> Changes {
    let record = found.get(names::KEPT_FROM_AUTOSCALERS);
    let recorded: BTreeSet<&str> = record
        .map(|text| text.split(',').collect())
        .unwrap_or_default();
    let mut changes = Changes::new();
    let mut ours = Vec::new();
    for key in KEYS {
        let value = found.get(key).map(String::as_str);
        let is_ours = recorded.contains(key) && value == Some(VALUE);
        if has_disks {
            if value.is_none() {
                changes.insert(key, Some(VALUE.to_owned()));
            }
            if value.is_none() || is_ours {
                ours.push(key);
            }
        } else if is_ours {
            changes.insert(key, None);
        }
    }
    let wanted = (!ours.is_empty()).then(|| ours.join(","));
    if wanted.as_ref() != record {
        changes.insert(names::KEPT_FROM_AUTOSCALERS, wanted);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = names::SCALE_DOWN_DISABLED;
    const KARPENTER: &str = names::DO_NOT_DISRUPT;

    fn apply(node: &mut BTreeMap<String, String>, has_disks: bool) {
        for (key, value) in changes(node, has_disks) {
            match value {
                Some(value) => node.insert(key.to_owned(), value),
                None => node.remove(key),
            };
        }
        assert!(
            changes(node, has_disks).is_empty(),
            "a fixed point: {node:?}"
        );
    }

    fn node(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_node_whose_only_disks_cannot_be_read_is_kept() {
        let of_lost_record = Disk {
            unreadable: "the database does not know it".to_owned(),
            ..Disk::default()
        };
        let in_the_making = Disk::default();
        let disks = [of_lost_record, in_the_making];
        let counted = |all, unreadable| DiskCount { all, unreadable };
        assert_eq!(count(&disks), counted(2, 1));
        assert_eq!(count(&disks[1..]), counted(1, 0));
        assert_eq!(count(&[]), counted(0, 0));
        let mut kept = BTreeMap::new();
        apply(&mut kept, count(&disks[..1]).all > 0);
        assert_eq!(kept.get(CLUSTER).map(String::as_str), Some("true"));
    }

    #[test]
    fn a_node_is_kept_from_its_first_disk_to_its_last() {
        let before = node(&[("other", "x")]);
        let mut kept = before.clone();
        apply(&mut kept, false);
        assert_eq!(kept, before);
        apply(&mut kept, true);
        assert_eq!(kept.get(CLUSTER).map(String::as_str), Some("true"));
        assert_eq!(kept.get(KARPENTER).map(String::as_str), Some("true"));
        apply(&mut kept, false);
        assert_eq!(kept, before);
    }

    #[test]
    fn the_value_of_an_administrator_stays_whatever_the_disks_are() {
        for value in ["true", "false"] {
            let before = node(&[(CLUSTER, value)]);
            let mut kept = before.clone();
            apply(&mut kept, true);
            assert_eq!(kept.get(CLUSTER).map(String::as_str), Some(value));
            assert_eq!(kept.get(KARPENTER).map(String::as_str), Some("true"));
            apply(&mut kept, false);
            assert_eq!(kept, before);
        }
    }

    #[test]
    fn a_value_that_an_administrator_changes_later_is_no_longer_ours() {
        let mut kept = BTreeMap::new();
        apply(&mut kept, true);
        kept.insert(CLUSTER.to_owned(), "false".to_owned());
        apply(&mut kept, true);
        // Even when it is what ours would be.
        kept.insert(CLUSTER.to_owned(), "true".to_owned());
        apply(&mut kept, true);
        apply(&mut kept, false);
        assert_eq!(kept, node(&[(CLUSTER, "true")]));
    }

    #[test]
    fn what_was_removed_by_hand_is_set_again_and_a_strange_record_removes_nothing() {
        let mut kept = BTreeMap::new();
        apply(&mut kept, true);
        kept.remove(CLUSTER);
        apply(&mut kept, true);
        assert!(kept.contains_key(CLUSTER));
        let mut strange = node(&[(names::KEPT_FROM_AUTOSCALERS, "other,,"), ("other", "true")]);
        apply(&mut strange, false);
        assert_eq!(strange, node(&[("other", "true")]));
    }
}
