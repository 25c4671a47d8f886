//! Probes the agents that run commands, so that no command waits for an agent that is gone.
//!
//! Invariant: an agent loses its connection only when it has answered nothing for five minutes
//! while its guest ran.
//! Failure: a machine whose state libvirt does not report keeps its connection.

use libvirt::{Hypervisor, Power};

use crate::platform::Platform;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// One round of probes.
    pub async fn probe_agents(&self) {
        for silent in self.guests.probe() {
            let id = &silent.machine;
            if !self.can_answer(id).await {
                self.guests.excuse(id);
            } else if silent.is_over {
                tracing::warn!(container = %id, "vmlet-guest does not answer: its commands are given up");
                self.guests.end(id);
            }
        }
    }

    /// Whether the guest executes instructions.
    async fn can_answer(&self, id: &podspec::ContainerId) -> bool {
        let Some(row) = self.parts.table.get(id).filter(|row| row.phase.runs()) else {
            return false;
        };
        let power = self.parts.hypervisor.power(row.domain()).await;
        matches!(power, Ok(Some(Power::On)))
    }
}
