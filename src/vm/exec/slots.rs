//! The limit of concurrent commands.
//!
//! Invariant: a machine has a bounded number, so that one with commands that hang takes nothing
//! from the others; so has the node, since each may hold two streams of output.
//! Failure: none; a command without a slot waits. For one in its machine it waits up to its caller's
//! deadline, and two minutes at most: the guest itself fills its machine with commands that hang.
//! For one on the node it waits on account of other machines, so that no deadline of the command
//! includes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use podspec::ContainerId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Commands in one machine.
const PER_MACHINE: usize = 16;
/// Commands on the node.
const PER_NODE: usize = 128;

/// Slots for commands.
#[derive(Debug)]
pub(in crate::vm) struct Slots {
    node: Arc<Semaphore>,
    machines: Mutex<HashMap<ContainerId, Arc<Semaphore>>>,
}

/// One of the slots of a machine.
#[derive(Debug)]
pub(super) struct OfMachine {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Held while a command runs.
#[derive(Debug)]
pub(super) struct Slot {
    _machine: OfMachine,
    _node: Option<OwnedSemaphorePermit>,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            node: Arc::new(Semaphore::new(PER_NODE)),
            machines: Mutex::default(),
        }
    }
}

impl Slots {
    /// Waits for a slot in this machine.
    pub(super) async fn in_machine(&self, id: &ContainerId) -> OfMachine {
        let machine = {
            let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
            // Permits hold a reference, and so does each waiting task.
            machines.retain(|_, slots| Arc::strong_count(slots) > 1);
            let new = || Arc::new(Semaphore::new(PER_MACHINE));
            Arc::clone(machines.entry(id.clone()).or_insert_with(new))
        };
        // It is never closed, and neither is the node's.
        OfMachine {
            _permit: machine.acquire_owned().await.ok(),
        }
    }

    /// Waits for a slot on the node.
    pub(super) async fn on_node(&self, machine: OfMachine) -> Slot {
        Slot {
            _machine: machine,
            _node: Arc::clone(&self.node).acquire_owned().await.ok(),
        }
    }

    #[cfg(test)]
    async fn take(&self, id: &ContainerId) -> Slot {
        let machine = self.in_machine(id).await;
        self.on_node(machine).await
    }

    /// Nothing is free in the machine until what this returns is dropped.
    #[cfg(test)]
    pub(super) async fn fill_machine(&self, id: &ContainerId) -> Vec<OfMachine> {
        let mut held = Vec::new();
        for _ in 0..PER_MACHINE {
            held.push(self.in_machine(id).await);
        }
        held
    }

    /// Nothing is free on the node until what this returns is dropped.
    #[cfg(test)]
    pub(super) async fn fill(&self) -> OwnedSemaphorePermit {
        let all = u32::try_from(PER_NODE).unwrap();
        Arc::clone(&self.node)
            .acquire_many_owned(all)
            .await
            .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_full_of_commands_leaves_slots_to_others() {
        let slots = Slots::default();
        let (busy, idle) = (ContainerId::generate(), ContainerId::generate());
        let mut held = Vec::new();
        for _ in 0..PER_MACHINE {
            held.push(slots.take(&busy).await);
        }
        let soon = Duration::from_secs(1);
        let more = tokio::time::timeout(soon, slots.take(&busy)).await;
        assert!(more.is_err());
        drop(slots.take(&idle).await);
        held.pop();
        held.push(slots.take(&busy).await);
        held.clear();
        drop(slots.take(&idle).await);
        assert_eq!(slots.machines.lock().unwrap().len(), 1);
    }
}
