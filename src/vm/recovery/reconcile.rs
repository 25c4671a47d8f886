//! Reconciles rows and domains: at start-up, after a loss of libvirt, and periodically.
//!
//! Invariant: a machine that runs under a row is ended only if its end was requested; what another
//! task works on at the moment is left to them. A machine with a record that cannot be read is left
//! alone.
//! Failure: an error of one container does not keep the others from being checked; the first
//! error is returned, and the caller repeats the round.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use libvirt::{Hypervisor, State};
use podspec::ContainerId;
use uuid::Uuid;

use crate::platform::Platform;
use crate::vm::error::{Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// Containers that are checked at once: one with a stuck disk keeps few others waiting.
const ABREAST: usize = 8;

impl<P: Platform> Containers<P> {
    /// One round over all containers and domains. False when a request held one that needs a look:
    /// then it has to be looked at again soon.
    pub async fn reconcile(self: &Arc<Self>) -> Result<bool> {
        let domains = self.parts.hypervisor.list().await;
        let domains = domains.map_err(hypervisor("list"))?;
        // Containers of one virtual machine have a domain of the same UUID, one after the other.
        let by_owner: HashMap<(Uuid, &str), State> = domains
            .iter()
            .map(|d| ((d.uuid, d.container.as_str()), d.state))
            .collect();
        let looks = self.parts.table.all().into_iter().map(|row| {
            let domain = by_owner.get(&(row.domain(), row.id.as_str())).copied();
            let this = Arc::clone(self);
            async move { this.reconcile_one(&row.id, domain).await }
        });
        let mut looks = stream::iter(looks).buffer_unordered(ABREAST);
        let mut outcome = Ok(());
        let mut complete = true;
        while let Some(one) = looks.next().await {
            match one {
                Ok(looked) => complete &= looked,
                Err(e) => outcome = outcome.and(Err(e)),
            }
        }
        outcome.and(self.collect(&domains).await)?;
        Ok(complete)
    }

    /// False when a request holds the container.
    async fn reconcile_one(
        self: &Arc<Self>,
        id: &ContainerId,
        domain: Option<State>,
    ) -> Result<bool> {
        let Some(row) = self.parts.table.get(id) else {
            return Ok(true);
        };
        if self.is_left_alone(&row) {
            return self.follow_only(&row, domain).await;
        }
        if row.is_process() && row.phase.runs() {
            // Needs no lock, and the processes of a pod share one.
            self.follow_again(&row);
            return Ok(true);
        }
        let Some(_lock) = self.parts.locks.try_lock(row.sandbox.as_str()) else {
            return Ok(is_settled(&row, domain));
        };
        let Some(row) = self.parts.table.get(id) else {
            return Ok(true);
        };
        let settled = match row.phase {
            _ if row.is_process() => self.reconcile_process(&row).await,
            Phase::Creating => self.drop_creating(&row).await,
            Phase::Starting => self.settle_starting(&row).await.map(drop),
            Phase::Running | Phase::Stopping if !row.boots() => Ok(()),
            Phase::Running | Phase::Stopping => self.reconcile_running(&row, domain).await,
            // A start that libvirt carried out after it had been given up, or an end cut short.
            Phase::Created if domain.is_some() => self.clean_up(&row).await,
            Phase::Exited if domain.is_some() || self.has_any_disk(&row) => self.let_go(&row).await,
            Phase::Created | Phase::Exited => Ok(()),
            Phase::Removing => self.remove_stopped(&row).await,
        };
        settled.inspect_err(|e| {
            tracing::warn!(container = %id, error = crate::one_line(e), "container not reconciled");
        })?;
        Ok(true)
    }

    /// Of a machine with an unreadable record, only what its guest says is looked after.
    async fn follow_only(&self, row: &Container, domain: Option<State>) -> Result<bool> {
        let _end = self.end_lock(&row.id).await;
        if row.phase.runs() && domain == Some(State::Active) {
            self.follow(row).await?;
        }
        Ok(true)
    }

    async fn reconcile_running(
        self: &Arc<Self>,
        row: &Container,
        domain: Option<State>,
    ) -> Result<()> {
        if domain != Some(State::Active) {
            // The list may be older than a start that has just ended.
            return self.end_if_inactive(row).await;
        }
        let _end = self.end_lock(&row.id).await;
        let Some(row) = self.parts.table.get(&row.id) else {
            return Ok(());
        };
        if row.phase.runs() {
            self.follow(&row).await?;
            self.watch_servers(&row).await;
        }
        if row.phase == Phase::Stopping {
            self.see_through(&row.id);
        }
        self.catch_up(&row.id);
        self.catch_up_snapshot(&row);
        Ok(())
    }

    /// Stops following every console without waiting for its end: the machines continue to run.
    pub async fn release_consoles(&self) {
        self.consoles.release().await;
    }
}

/// Whether row and domain agree, so that there is nothing to do.
fn is_settled(row: &Container, domain: Option<State>) -> bool {
    match row.phase {
        Phase::Running | Phase::Stopping => !row.boots() || domain == Some(State::Active),
        Phase::Created | Phase::Exited => domain.is_none(),
        Phase::Creating | Phase::Starting | Phase::Removing => false,
    }
}
