//! Whose turn it is among the tasks of a machine.
//!
//! Invariant: a task waits for those of its machine that came before it, and for none that is worked on
//! beside others.
//! Failure: none; a task that ends in any way makes way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The tasks of one node. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    /// Machines and places of the tasks that others wait for.
    ahead: BTreeSet<(String, u64)>,
}

/// The place of one task.
pub(super) struct Turn {
    turns: Turns,
    place: (String, u64),
}

impl Turns {
    /// The next place; for a task that is worked on beside others, no other one waits.
    pub(super) fn take(&self, machine: &str, is_beside: bool) -> Turn {
        let mut state = self.0.lock().unwrap();
        state.next += 1;
        let place = (machine.to_owned(), state.next);
        if !is_beside {
            state.ahead.insert(place.clone());
        }
        Turn {
            turns: self.clone(),
            place,
        }
    }
}

impl Turn {
    pub(super) fn has_come(&self) -> bool {
        let state = self.turns.0.lock().unwrap();
        let first = (self.place.0.clone(), 0);
        state
            .ahead
            .range(first..self.place.clone())
            .next()
            .is_none()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.0.lock().unwrap().ahead.remove(&self.place);
    }
}

#[test]
fn tasks_of_a_machine_wait_for_those_before_them() {
    let turns = Turns::default();
    let beside = turns.take("a", true);
    let first = turns.take("a", false);
    let second = turns.take("a", false);
    let last = turns.take("a", true);
    let other = turns.take("b", false);
    let come = |all: [&Turn; 4]| all.map(Turn::has_come);
    assert_eq!(
        come([&beside, &first, &second, &other]),
        [true, true, false, true]
    );
    drop(first);
    assert!(second.has_come() && !last.has_come());
    drop(second);
    assert!(last.has_come());
}
