//! Probes the agents that run commands, so that no command waits for an agent that is gone.
//!
//! Invariant: an agent loses its connection only when it has answered nothing for five minutes
//! while its guest ran.
//! Failure: a machine whose state libvirt does not report keeps its connection; the time of its agent
//! begins again.

use futures_util::future::join_all;
use libvirt::{Hypervisor, Power};
use podspec::ContainerId;

use crate::guest::Silent;
use crate::platform::Platform;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// One round of probes.
    pub async fn probe_agents(&self) {
        let silent = self.guests.probe().into_iter();
        // A look at a machine that hangs delays no other.
        join_all(silent.map(|silent| self.judge(silent))).await;
    }

    async fn judge(&self, silent: Silent) {
        let id = &silent.machine;
        if !self.can_answer(id).await {
            self.guests.excuse(id);
        } else if silent.is_over && self.guests.end_silent(id) {
            tracing::warn!(container = %id, "vmlet-guest does not answer: its commands are given up");
        }
    }

    /// Whether the guest executes instructions.
    async fn can_answer(&self, id: &ContainerId) -> bool {
        let Some(row) = self.parts.table.get(id).filter(|row| row.phase.runs()) else {
            return false;
        };
        let power = self.parts.hypervisor.power(row.domain()).await;
        matches!(power, Ok(Some(Power::On)))
    }
}
