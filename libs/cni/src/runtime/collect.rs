//! Removes the attachments that the caller does not list (CNI GC).
//!
//! Invariant: only attachments of our own cache are detached; plugins receive every attachment that
//! is valid, ours and our neighbours', before they may collect anything.
//! Failure: one attachment or plugin that fails does not keep the others from their turn; all
//! failures are in the outcome. When a neighbour's cache cannot be read, plugins are not asked at
//! all.

use std::collections::BTreeSet;

use rscni_types::types::Cmd;

use super::{Error, Result, Runtime, plugin_input};
use crate::invoke::Call;
use crate::{AttachmentId, CachedAttachment, NetworkConfig};

/// What a collection has done.
#[derive(Debug, Default)]
pub struct GcOutcome {
    /// Attachments that were detached.
    pub removed: Vec<CachedAttachment>,
    /// What failed; such attachments are still in the cache.
    pub errors: Vec<Error>,
}

impl Runtime {
    /// Detaches every cached attachment that is not in `keep`, whatever its network. Then, from
    /// version 1.1.0 on and unless it says `disableGC`, asks the plugins of `network` to free what
    /// belongs to no valid attachment. `keep` must name attachments whose ADD is in progress, too.
    pub async fn gc(
        &self,
        network: Option<&NetworkConfig>,
        keep: &[AttachmentId],
    ) -> Result<GcOutcome> {
        let keep: BTreeSet<&AttachmentId> = keep.iter().collect();
        let mut outcome = GcOutcome::default();
        for entry in self.on_disk(|cache| cache.all()).await? {
            let summary = entry.summary();
            if keep.contains(&summary.id) {
                continue;
            }
            match self.del_entry(entry).await {
                Ok(()) => outcome.removed.push(summary),
                Err(error) => outcome.errors.push(error),
            }
        }
        let allowed = |n: &&NetworkConfig| !n.disable_gc() && n.version().allows(Cmd::Gc).is_ok();
        if let Some(network) = network.filter(allowed) {
            // What could not be detached is still there, so plugins must not free it behind our
            // back.
            match self.valid(network.name(), &keep).await {
                Ok(valid) => self.ask_plugins(network, &valid, &mut outcome).await,
                Err(error) => outcome.errors.push(error),
            }
        }
        Ok(outcome)
    }

    /// What is valid in a network: what is kept, what is in our cache, what neighbours have there.
    async fn valid(
        &self,
        network: &str,
        keep: &BTreeSet<&AttachmentId>,
    ) -> Result<Vec<AttachmentId>> {
        let mut valid: BTreeSet<AttachmentId> = keep.iter().map(|&id| id.clone()).collect();
        let caches: Vec<_> = self
            .neighbours
            .iter()
            .chain([&self.cache])
            .cloned()
            .collect();
        for cache in caches {
            let found = tokio::task::spawn_blocking(move || cache.every());
            let entries = found
                .await
                .map_err(Error::Interrupted)?
                .map_err(Error::Cache)?;
            let here = entries.iter().filter(|entry| entry.network_name == network);
            valid.extend(here.map(|entry| entry.id()));
        }
        Ok(valid.into_iter().collect())
    }

    async fn ask_plugins(
        &self,
        network: &NetworkConfig,
        valid: &[AttachmentId],
        outcome: &mut GcOutcome,
    ) {
        for plugin in network.plugins() {
            let call = Call {
                command: Cmd::Gc,
                network: network.name(),
                plugin: plugin.kind(),
                attachment: None,
                config: plugin_input(network, plugin, None, None, Some(valid)),
            };
            if let Err(error) = self.invoker.run(&call).await {
                outcome.errors.push(Error::plugin(error));
            }
        }
    }
}
