//! The effect of a node reboot on sandboxes.
//!
//! Invariant: after it no sandbox counts as ready: namespaces and taps do not survive a boot. What
//! the network left behind (addresses that plugins lent, journal, cache) is removed with the next
//! reconciliation.
//! Failure: a sandbox whose loss cannot be recorded is logged and left to reconciliation, which finds
//! that its network is missing: it keeps no other sandbox, and not the node, from its service.

use super::error::Result;
use super::service::Sandboxes;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sandbox::state::{Event, Phase};

impl<P: Platform> Sandboxes<P> {
    /// Records that every sandbox lost its network when the node was rebooted. Before anything is
    /// served.
    pub async fn after_reboot(&self) {
        let mut ready = self.table.all();
        ready.retain(|sandbox| sandbox.phase == Phase::Ready);
        for sandbox in &ready {
            if let Err(e) = self.lost(sandbox).await {
                let error = crate::one_line(&e);
                tracing::warn!(sandbox = %sandbox.id, error, "loss by a node reboot not recorded yet");
            }
        }
        tracing::info!(
            sandboxes = ready.len(),
            "pod sandboxes marked not ready after a node reboot"
        );
    }

    async fn lost(&self, sandbox: &Sandbox) -> Result<()> {
        let _lock = self.locks.lock(sandbox.id.as_str()).await;
        let network = sandbox.network.clone();
        let stopped = self.move_on(&sandbox.id, Event::StopRequested, "stopped", network);
        stopped.await.map(drop)
    }
}
