//! Reconciles rows and networks after a crash, a reboot or a loss.
//!
//! Invariant: only half-done work and networks without a sandbox are touched; a ready sandbox with
//! its network stays as it is, and so does one that another task works on at the moment, and one with
//! a record that cannot be read.
//! Failure: an error of one sandbox does not keep the others from being checked; the first error
//! is returned, and the caller repeats the round. While the tapmanager is away nothing is done.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use podspec::SandboxId;

use super::error::{Error, Result};
use super::service::Sandboxes;
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sandbox::state::Phase;

/// Sandboxes that are checked at once: one whose plugins hang keeps few others waiting.
const ABREAST: usize = 8;

impl<P: Platform> Sandboxes<P> {
    /// One round over all sandboxes.
    pub async fn reconcile(self: &Arc<Self>) -> Result<()> {
        let networks = self.network.list().await.map_err(Error::Networks)?;
        let listed: Arc<HashSet<String>> = Arc::new(networks.iter().cloned().collect());
        let looks = self.table.all().into_iter().map(|sandbox| {
            let this = Arc::clone(self);
            let listed = Arc::clone(&listed);
            async move { this.reconcile_one(&sandbox, &listed).await }
        });
        let mut looks = stream::iter(looks).buffer_unordered(ABREAST);
        let mut outcome = Ok(());
        while let Some(one) = looks.next().await {
            outcome = outcome.and(one);
        }
        self.collect_networks(&networks).await;
        outcome
    }

    async fn reconcile_one(&self, sandbox: &Sandbox, listed: &HashSet<String>) -> Result<()> {
        if self.containers.check_sandbox(&sandbox.id).is_err() {
            return Ok(());
        }
        let settled = match sandbox.phase {
            Phase::Creating => self.reconcile_creating(sandbox).await,
            // What is listed and not found is there and cannot be described: its machine may well
            // run.
            Phase::Ready if listed.contains(sandbox.id.as_str()) => Ok(()),
            Phase::Ready => self.reconcile_ready(&sandbox.id).await,
            Phase::Stopping => self.stop_to_end(&sandbox.id).await,
            Phase::Removing => self.remove_to_end(&sandbox.id).await,
            Phase::Stopped => Ok(()),
        };
        settled.inspect_err(|e| {
            tracing::warn!(sandbox = %sandbox.id, error = crate::one_line(e), "pod sandbox not reconciled");
        })
    }

    async fn reconcile_creating(&self, sandbox: &Sandbox) -> Result<()> {
        // A request that still creates it holds this lock.
        match self.locks.try_lock(&sandbox.config.metadata.identity()) {
            Some(_attempt) => self.settle_creating(&sandbox.id).await,
            None => Ok(()),
        }
    }

    /// A network that no longer exists (the node was rebooted) cannot return: the sandbox is not
    /// ready.
    async fn reconcile_ready(&self, id: &SandboxId) -> Result<()> {
        let network = self.network.get(id).await;
        let network = network.map_err(|source| Error::Network {
            step: "look up the network",
            id: id.clone(),
            source,
        })?;
        if network.is_none() && self.table.get(id).is_some_and(|s| s.phase == Phase::Ready) {
            tracing::warn!(sandbox = %id, "network of a ready pod sandbox missing");
            self.stop_to_end(id).await?;
        }
        Ok(())
    }

    /// Takes down what belongs to no sandbox: once after the start, and later if there is any. New
    /// sandboxes wait meanwhile, so that theirs is not taken for one.
    async fn collect_networks(&self, networks: &[String]) {
        // While a network is being made there is a next time.
        let Ok(mut collected) = self.collected.try_write() else {
            return;
        };
        let aside = self.table.aside();
        if aside.is_anonymous() {
            return;
        }
        // Read after the networks: a row is older than its network.
        let rows = self.table.all();
        let rows = rows.iter().map(|s| s.id.as_str());
        let aside = aside.rows().iter().map(|row| row.key.as_str());
        let rows: HashSet<&str> = rows.chain(aside).collect();
        if *collected && networks.iter().all(|id| rows.contains(id.as_str())) {
            return;
        }
        let keep = rows.into_iter().map(str::to_owned).collect();
        match self.network.gc(keep).await {
            Ok(gone) => {
                *collected = true;
                if !gone.is_empty() {
                    tracing::warn!(sandboxes = ?gone, "networks without a pod sandbox removed");
                }
            }
            // A later round tries again; what a plugin cannot collect blocks no other network.
            Err(e) => {
                tracing::warn!(
                    error = crate::one_line(&e),
                    "networks without a pod sandbox not removed"
                );
            }
        }
    }
}
