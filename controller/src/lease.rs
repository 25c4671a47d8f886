//! Leader election: one of several controllers is active.
//!
//! A Lease object names the holder. It is written only in the version that was read
//! (`resourceVersion`), so of two that want it one is refused; and its age is measured with this
//! process's own clock from the moment a change of it was seen, so clocks that differ between nodes
//! have no effect.
//!
//! Invariant: at most one process believes that it holds the lease; a holder that could not renew
//! stops believing before another process may take it ([`Fence`]).
//! Failure: a lease that was lost is never taken again by the same process: it ends, and starts
//! clean.

mod fence;
mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::api::PostParams;
use kube::{Api, Client};
use service::telemetry;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::Lease as Settings;
use state::{Election, Step};

pub use fence::{Fence, FenceLayer, Lost};

/// One process's candidacy for the lease.
#[allow(missing_debug_implementations, reason = "clients have none")]
pub struct Lease {
    api: Api<Object>,
    settings: Settings,
    election: Election,
    fence: Fence,
    epoch: Instant,
}

/// Why one attempt failed. The next one may not.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("read the lease")]
    Read(#[source] kube::Error),
    #[error("write the lease")]
    Write(#[source] kube::Error),
    #[error("the API server does not answer")]
    Silent,
}

impl Lease {
    /// The lease for the process called `identity`; `client` must not be behind the fence.
    #[must_use]
    pub fn new(client: Client, namespace: &str, settings: &Settings, identity: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            settings: settings.clone(),
            election: Election::new(identity, &settings.name, settings.duration_secs()),
            fence: Fence::closed(),
            epoch: Instant::now(),
        }
    }

    /// What is open as long as the lease is held.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Returns once the lease is held, or `false` when `stop` came first.
    pub async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        loop {
            match self.attempt().await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => tracing::warn!(error = chain(&error), "lease not renewed"),
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = sleep(self.pause()) => {}
            }
        }
    }

    /// Renews until the lease is lost; returns then, and never otherwise.
    pub async fn hold(&mut self) -> Lost {
        loop {
            let left = self.fence.left();
            if left.is_zero() {
                return Lost;
            }
            sleep(self.settings.retry.get().min(left)).await;
            match self.attempt().await {
                Ok(true) => {}
                // Another process has it: there is nothing to wait for.
                Ok(false) => {
                    self.fence.close();
                    return Lost;
                }
                Err(error) => tracing::warn!(error = chain(&error), "lease not renewed"),
            }
        }
    }

    /// Gives the lease back, so that another process need not wait for its end.
    pub async fn release(&mut self) {
        self.fence.close();
        let Some(lease) = self.election.release() else {
            return;
        };
        let name = lease.metadata.name.clone().unwrap_or_default();
        let params = PostParams::default();
        let write = self.api.replace(&name, &params, &lease);
        match timeout(self.settings.retry.get(), write).await {
            Ok(Ok(_)) => tracing::info!("lease released"),
            // It ends by itself.
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "lease not released"),
            Err(_) => tracing::warn!(error = %Trouble::Silent, "lease not released"),
        }
    }

    /// Reads and, if allowed, writes; whether the lease is held now.
    async fn attempt(&mut self) -> Result<bool, Trouble> {
        let began = Instant::now();
        let limit = self.settings.renew_deadline.get() / 2;
        let answer = timeout(limit, self.exchange()).await;
        let is_held = answer.map_err(|_| Trouble::Silent)??;
        if is_held {
            // Others count from when they see it, which is later.
            self.fence
                .open_until(began + self.settings.renew_deadline.get());
        }
        Ok(is_held)
    }

    async fn exchange(&mut self) -> Result<bool, Trouble> {
        let name = &self.settings.name;
        let found = self.api.get_opt(name).await.map_err(Trouble::Read)?;
        let step = self
            .election
            .observe(found, self.epoch.elapsed(), Timestamp::now());
        let params = PostParams::default();
        let written = match step {
            Step::Wait => return Ok(false),
            Step::Create(lease) => self.api.create(&params, &lease).await,
            Step::Update(lease) => self.api.replace(name, &params, &lease).await,
        };
        match written {
            Ok(lease) => {
                self.election.written(lease, self.epoch.elapsed());
                Ok(true)
            }
            // Another process was faster; the next read shows which. A holder does not lose the
            // lease by that alone.
            Err(error) if is_conflict(&error) => {
                if self.election.is_held() {
                    Err(Trouble::Write(error))
                } else {
                    Ok(false)
                }
            }
            Err(error) => Err(Trouble::Write(error)),
        }
    }

    /// Up to a fifth longer than configured, so that those that wait do not all ask at once.
    fn pause(&self) -> Duration {
        let random = uuid::Uuid::new_v4().as_bytes()[0];
        self.settings.retry.get() + self.settings.retry.get() * u32::from(random) / 1280
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    telemetry::one_line(error)
}
