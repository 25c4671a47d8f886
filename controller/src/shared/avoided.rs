//! Nodes on which the root disk of a new machine could not be made a moment ago.
//!
//! Invariant: advice to the scheduler, which may choose such a node all the same: it may be the only one.
//! An entry is forgotten after a while, and by a restart.
//! Failure: none.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::stores::Key;

/// How long a node is avoided, in seconds.
const PERIOD: i64 = 900;

/// By machine, the nodes and until when. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Avoided(Arc<Mutex<HashMap<Key, BTreeMap<String, i64>>>>);

impl Avoided {
    /// Avoids a node from `now` on, in seconds since the epoch.
    pub fn add(&self, machine: &Key, node: &str, now: i64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, nodes| nodes.values().any(|until| *until > now));
        let nodes = all.entry(machine.clone()).or_default();
        nodes.insert(node.to_owned(), now.saturating_add(PERIOD));
    }

    /// The nodes that the machine avoids now, in alphabetical order.
    #[must_use]
    pub fn of(&self, machine: &Key, now: i64) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = all.get(machine).into_iter().flatten();
        let nodes = nodes.filter(|(_, until)| **until > now);
        nodes.map(|(node, _)| node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_avoided_for_a_while_by_one_machine() {
        let avoided = Avoided::default();
        let (one, other) = (Key::new("ns", "a"), Key::new("ns", "b"));
        avoided.add(&one, "n2", 0);
        avoided.add(&one, "n1", 10);
        assert_eq!(avoided.of(&one, 10), ["n1", "n2"]);
        assert_eq!(avoided.of(&one, PERIOD), ["n1"]);
        assert!(avoided.of(&other, 10).is_empty());
        avoided.add(&other, "n3", PERIOD + 10);
        assert!(avoided.of(&one, PERIOD + 10).is_empty());
        assert_eq!(avoided.0.lock().unwrap().len(), 1, "forgotten");
    }
}
