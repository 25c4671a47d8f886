//! Nodes on which the root disk of a new machine could not be made a moment ago, and since when.
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
pub struct Avoided(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    until: HashMap<Key, BTreeMap<String, i64>>,
    failing: HashMap<Key, Failing>,
}

/// Attempts on one node that failed one after the other.
#[derive(Debug)]
struct Failing {
    node: String,
    first: i64,
    last: i64,
}

impl Avoided {
    /// Avoids a node from `now` on, in seconds since the epoch.
    pub fn add(&self, machine: &Key, node: &str, now: i64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.failing.remove(machine);
        let all = &mut state.until;
        all.retain(|_, nodes| nodes.values().any(|until| *until > now));
        let nodes = all.entry(machine.clone()).or_default();
        nodes.insert(node.to_owned(), now.saturating_add(PERIOD));
    }

    /// An attempt on a node has failed. Seconds since the first of those that failed in a row there;
    /// a long time without any ends the row.
    pub fn failed(&self, machine: &Key, node: &str, now: i64) -> i64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = &mut state.failing;
        all.retain(|_, one| now.saturating_sub(one.last) < PERIOD);
        let before = all.get(machine).filter(|one| one.node == node);
        let first = before.map_or(now, |one| one.first);
        let node = node.to_owned();
        let last = now;
        all.insert(machine.clone(), Failing { node, first, last });
        now.saturating_sub(first)
    }

    /// The nodes that the machine avoids now, in alphabetical order.
    #[must_use]
    pub fn nodes_for(&self, machine: &Key, now: i64) -> Vec<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = state.until.get(machine).into_iter().flatten();
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
        let one = Key::new("ns", "a");
        let other = Key::new("ns", "b");
        avoided.add(&one, "n2", 0);
        avoided.add(&one, "n1", 10);
        assert_eq!(avoided.nodes_for(&one, 10), ["n1", "n2"]);
        assert_eq!(avoided.nodes_for(&one, PERIOD), ["n1"]);
        assert!(avoided.nodes_for(&other, 10).is_empty());
        avoided.add(&other, "n3", PERIOD + 10);
        assert!(avoided.nodes_for(&one, PERIOD + 10).is_empty());
        assert_eq!(avoided.0.lock().unwrap().until.len(), 1, "forgotten");
    }

    #[test]
    fn failures_on_one_node_are_in_a_row_until_it_is_avoided_or_none_comes() {
        let avoided = Avoided::default();
        let machine = Key::new("ns", "a");
        let failed = |node, now| avoided.failed(&machine, node, now);
        assert_eq!((failed("n1", 10), failed("n1", 50)), (0, 40));
        assert_eq!(failed("n2", 60), 0, "another node");
        assert_eq!((failed("n1", 70), failed("n1", 90)), (0, 20));
        avoided.add(&machine, "n1", 100);
        assert_eq!(failed("n1", 110), 0, "given up since");
        assert_eq!(failed("n1", 110 + PERIOD), 0, "too long ago");
    }
}
