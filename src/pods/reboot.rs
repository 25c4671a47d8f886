//! The effect of a node reboot on sandboxes.
//!
//! Invariant: after it no sandbox counts as ready: namespaces and taps do not survive a boot. What
//! the network left behind (addresses that plugins lent, journal, cache) is removed with the next
//! reconciliation.
//! Failure: the first error; the whole is repeated at the next start.

use super::error::Result;
use super::service::Sandboxes;
use crate::platform::Platform;
use crate::sandbox::state::{Event, Phase};

impl<P: Platform> Sandboxes<P> {
    /// Records that every sandbox lost its network when the node was rebooted. Before anything is
    /// served.
    pub async fn after_reboot(&self) -> Result<()> {
        let mut ready = self.table.all();
        ready.retain(|sandbox| sandbox.phase == Phase::Ready);
        for sandbox in &ready {
            let _lock = self.locks.lock(sandbox.id.as_str()).await;
            let network = sandbox.network.clone();
            self.move_on(&sandbox.id, Event::StopRequested, "stopped", network)
                .await?;
        }
        tracing::info!(
            sandboxes = ready.len(),
            "pod sandboxes marked not ready after a node reboot"
        );
        Ok(())
    }
}
