//! Removes every network that the caller does not list.
//!
//! Invariant: only sandboxes of our journal are taken down, by CNI DEL. Plugins are requested to
//! collect only where the settings allow it, while nothing is being attached here, and with the list
//! of every known attachment: what another runtime is attaching at that moment cannot be in it.
//! Failure: a network that cannot be removed is left for the next time, and the rest is removed.

use std::collections::BTreeSet;
use std::time::Duration;

use service::telemetry::one_line;

use super::Sandboxes;
use crate::failure::Failure;
use crate::network::LINK;

/// How long plugins that attach may keep a collection waiting, and with it those that come later.
const TURN: Duration = Duration::from_secs(5);

impl Sandboxes {
    /// Takes down every network but those of `keep`, then runs CNI GC where that is allowed. Returns
    /// the ids of what went.
    pub(crate) async fn gc(&self, keep: &[String]) -> Vec<String> {
        let keep: BTreeSet<&str> = keep.iter().map(String::as_str).collect();
        let mut gone = Vec::new();
        for id in self.list() {
            // Failures are logged there.
            if !keep.contains(id.as_str()) && self.del(&id).await.is_ok() {
                gone.push(id);
            }
        }
        if self.plugin_gc
            && let Err(failure) = self.collect_attachments().await
        {
            tracing::warn!(error = one_line(&failure), "CNI garbage collection skipped");
        }
        tracing::info!(
            removed = gone.len(),
            kept = keep.len(),
            plugins = self.plugin_gc,
            "CNI garbage collection completed"
        );
        gone
    }

    async fn collect_attachments(&self) -> Result<(), Failure> {
        let turn = tokio::time::timeout(TURN, self.attaching.write());
        let _alone = turn.await.map_err(|_| Failure::Crowded)?;
        let network = self.runtime.network().await.map_err(Failure::NoNetwork)?;
        let known = self.runtime.cached().await.map_err(Failure::Attachments)?;
        let mut keep: Vec<_> = known.into_iter().map(|attachment| attachment.id).collect();
        keep.extend(
            self.list()
                .into_iter()
                .map(|container_id| cni::AttachmentId {
                    container_id,
                    ifname: LINK.to_owned(),
                }),
        );
        let outcome = self
            .runtime
            .gc(Some(&network), &keep)
            .await
            .map_err(Failure::Attachments)?;
        for error in outcome.errors {
            tracing::warn!(
                error = one_line(&error),
                "CNI garbage collection by a plugin failed"
            );
        }
        Ok(())
    }
}
