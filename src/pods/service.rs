//! Creates, stops and removes sandboxes.
//!
//! Invariant: one request at a time per sandbox; each effect is announced by a phase that is stored
//! before it, and every step can be repeated.
//! Failure: a sandbox whose making failed is undone at once; when even that fails its row stays in
//! phase Creating, unseen by clients, and is undone as soon as the tapmanager answers.

use std::sync::Arc;
use std::time::Instant;

use podspec::SandboxId;
use tapmanager::wire::Network;
use tokio::sync::RwLock;

use super::error::{Error, Result};
use super::network::add_request;
use crate::clock;
use crate::locks::Locks;
use crate::metadata::{LookupError, Table};
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::sandbox::state::{Event, Phase};
use crate::sandbox::{PodMetadata, Sandbox, SandboxConfig};
use crate::steps::{step, trace};
use crate::tasks::Tasks;
use crate::vm::Containers;

/// The sandboxes of this node.
#[derive(Debug)]
pub struct Sandboxes<P: Platform> {
    pub(super) table: Arc<Table<Sandbox>>,
    pub(super) network: Arc<P::Network>,
    pub(super) containers: Arc<Containers<P>>,
    pub(super) locks: Locks,
    /// Read while a network is made; written while networks without owner are collected. True when
    /// that was done since the start.
    pub(super) collected: RwLock<bool>,
    tasks: Tasks,
}

impl<P: Platform> Sandboxes<P> {
    /// The service over these rows; `locks` must be the machines' too.
    pub fn new(
        table: Arc<Table<Sandbox>>,
        network: Arc<P::Network>,
        containers: Arc<Containers<P>>,
        locks: Locks,
        tasks: Tasks,
    ) -> Self {
        Self {
            table,
            network,
            containers,
            locks,
            collected: RwLock::new(false),
            tasks,
        }
    }

    /// The one sandbox whose id begins with `prefix`.
    pub fn find(&self, prefix: &str) -> Result<Arc<Sandbox>, LookupError> {
        self.table.find(prefix, |sandbox| sandbox.phase.is_listed())
    }

    /// All sandboxes that clients may see.
    pub fn list(&self) -> Vec<Arc<Sandbox>> {
        let mut all = self.table.all();
        all.retain(|sandbox| sandbox.phase.is_listed());
        all
    }

    /// Makes a sandbox, or returns the ready one that was made from the same request.
    pub async fn run(self: &Arc<Self>, config: SandboxConfig) -> Result<SandboxId> {
        let this = Arc::clone(self);
        self.tasks
            .finish(async move { this.run_to_end(config).await })
            .await
    }

    /// Kills the machine and takes the network down; success when that was done before.
    pub async fn stop(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let this = Arc::clone(self);
        let id = id.clone();
        self.tasks
            .finish(async move { this.stop_to_end(&id).await })
            .await
    }

    /// Stops the sandbox and removes every trace of it; success when there is none.
    pub async fn remove(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let this = Arc::clone(self);
        let id = id.clone();
        self.tasks
            .finish(async move { this.remove_to_end(&id).await })
            .await
    }

    async fn run_to_end(&self, config: SandboxConfig) -> Result<SandboxId> {
        let _attempt = self.locks.lock(&config.metadata.identity()).await;
        if let Some(id) = self.earlier(&config).await? {
            return Ok(id);
        }
        let _collecting = self.collected.read().await;
        let sandbox = Sandbox {
            id: SandboxId::generate(),
            phase: Phase::Creating,
            created_at: clock::now(),
            config,
            network: None,
        };
        let request = add_request(&sandbox, self.containers.nics_in_memory(&sandbox.config))?;
        let id = sandbox.id.clone();
        let _lock = self.locks.lock(id.as_str()).await;
        self.table.insert(sandbox).await?;
        faultpoint::point("sandbox.run.recorded");
        let step = step!("network.setup", sandbox = %id);
        let network = match trace(step, self.network.add(request)).await {
            Ok(network) => network,
            Err(source) => {
                self.undo(&id).await;
                return Err(Error::Network {
                    step: "set up the network",
                    id,
                    source,
                });
            }
        };
        faultpoint::point("sandbox.run.network");
        self.move_on(&id, Event::NetworkUp, "made ready", Some(network))
            .await?;
        faultpoint::point("sandbox.run.ready");
        tracing::info!(sandbox = %id, "pod sandbox created");
        Ok(id)
    }

    /// What an earlier request for the same pod attempt left behind.
    async fn earlier(&self, config: &SandboxConfig) -> Result<Option<SandboxId>> {
        let aside = self.table.aside();
        let is_of_pod = |pod: &PodMetadata| pod.is_same_pod(&config.metadata);
        let mut unreadable = aside.rows().iter();
        if let Some(row) = unreadable.find(|row| row.trace.as_ref().is_some_and(is_of_pod)) {
            return Err(aside.error(row).into());
        }
        let mut all = self.table.all().into_iter();
        let Some(found) = all.find(|s| s.config.metadata == config.metadata) else {
            return Ok(None);
        };
        match found.phase {
            Phase::Ready if found.config == *config => Ok(Some(found.id.clone())),
            // No other request creates it any more: this request holds the attempt's lock.
            Phase::Creating => {
                self.settle_creating(&found.id).await?;
                Ok(None)
            }
            phase => Err(Error::Exists {
                pod: config.metadata.shown(),
                id: found.id.clone(),
                phase,
            }),
        }
    }

    /// Undoes a sandbox whose making was cut short.
    pub(super) async fn settle_creating(&self, id: &SandboxId) -> Result<()> {
        let _lock = self.locks.lock(id.as_str()).await;
        if self
            .table
            .get(id)
            .is_some_and(|s| s.phase == Phase::Creating)
        {
            self.take_network_down(id).await?;
            self.table.remove(id).await?;
        }
        Ok(())
    }

    /// After a failure: nothing is left, or a row that the next request for the same attempt, or
    /// reconciliation, settles once the tapmanager is back.
    async fn undo(&self, id: &SandboxId) {
        let undone = match self.take_network_down(id).await {
            Ok(()) => self.table.remove(id).await.map_err(Error::from),
            Err(e) => Err(e),
        };
        if let Err(e) = undone {
            tracing::warn!(
                sandbox = %id,
                error = crate::one_line(&e),
                "failed pod sandbox not undone yet"
            );
        }
    }

    pub(super) async fn stop_to_end(&self, id: &SandboxId) -> Result<()> {
        let begun = Instant::now();
        self.check_readable(id)?;
        {
            // First: a creation may hold the lock for as long as it copies an image.
            let _stop = self.containers.request_stop(id);
            let _lock = self.locks.lock(id.as_str()).await;
            let Some(sandbox) = self.table.get(id) else {
                return Ok(());
            };
            if matches!(sandbox.phase, Phase::Creating | Phase::Removing) {
                return Ok(());
            }
            // From here on no container is created or started in it.
            self.move_on(id, Event::StopRequested, "stopped", sandbox.network.clone())
                .await?;
            faultpoint::point("sandbox.stop.recorded");
        }
        let killing = Instant::now();
        let killed = self.containers.kill_all(id).await;
        killed.map_err(|e| Error::Guests {
            step: "stop",
            id: id.clone(),
            source: Box::new(e),
        })?;
        let machines = killing.elapsed();
        faultpoint::point("sandbox.stop.killed");
        let _lock = self.locks.lock(id.as_str()).await;
        let removing = Instant::now();
        self.take_network_down(id).await?;
        let network = removing.elapsed();
        faultpoint::point("sandbox.stop.network");
        let Some(sandbox) = self.table.get(id) else {
            return Ok(());
        };
        if sandbox.phase != Phase::Removing {
            self.move_on(id, Event::NetworkDown, "stopped", None)
                .await?;
        }
        faultpoint::point("sandbox.stop.stopped");
        let took = begun.elapsed();
        tracing::info!(sandbox = %id, ?took, ?machines, ?network, "pod sandbox stopped");
        Ok(())
    }

    pub(super) async fn remove_to_end(&self, id: &SandboxId) -> Result<()> {
        self.stop_to_end(id).await?;
        {
            let _lock = self.locks.lock(id.as_str()).await;
            let Some(sandbox) = self.table.get(id) else {
                return Ok(());
            };
            self.move_on(
                id,
                Event::RemoveRequested,
                "removed",
                sandbox.network.clone(),
            )
            .await?;
            faultpoint::point("sandbox.remove.recorded");
        }
        let removed = self.containers.remove_all(id).await;
        removed.map_err(|e| Error::Guests {
            step: "remove",
            id: id.clone(),
            source: Box::new(e),
        })?;
        faultpoint::point("sandbox.remove.guests");
        let _lock = self.locks.lock(id.as_str()).await;
        self.take_network_down(id).await?;
        self.table.remove(id).await?;
        faultpoint::point("sandbox.remove.gone");
        tracing::info!(sandbox = %id, "pod sandbox removed");
        Ok(())
    }

    /// Refuses the end of a sandbox that is left alone, because a record of it or of what is in it
    /// cannot be read.
    fn check_readable(&self, id: &SandboxId) -> Result<()> {
        let readable = self.containers.check_sandbox(id);
        readable.map_err(|e| Error::Guests {
            step: "stop",
            id: id.clone(),
            source: Box::new(e),
        })
    }

    /// Writes ends of sandboxes that the database could not take before.
    pub async fn store_late(&self) -> Result<()> {
        Ok(self
            .table
            .store_late()
            .await
            .map_err(crate::metadata::TableError::from)?)
    }

    async fn take_network_down(&self, id: &SandboxId) -> Result<()> {
        let step = step!("network.teardown", sandbox = %id);
        let down = trace(step, self.network.del(id)).await;
        down.map_err(|source| Error::Network {
            step: "take down the network",
            id: id.clone(),
            source,
        })
    }

    /// Stores the phase after `event`; the caller holds the sandbox's lock.
    pub(super) async fn move_on(
        &self,
        id: &SandboxId,
        event: Event,
        verb: &'static str,
        network: Option<Network>,
    ) -> Result<Arc<Sandbox>> {
        let phase = self
            .table
            .get(id)
            .map_or(Phase::Removing, |sandbox| sandbox.phase);
        let refused = || Error::Phase {
            id: id.clone(),
            phase,
            verb,
        };
        let next = phase.on(event).ok_or_else(refused)?;
        let change = |sandbox: &mut Sandbox| {
            sandbox.phase = next;
            sandbox.network = network;
        };
        let changed = match event {
            Event::NetworkUp => self.table.change(id, phase, change).await,
            Event::StopRequested | Event::NetworkDown | Event::RemoveRequested => {
                self.table.change_to_end(id, phase, change).await
            }
        };
        Ok(changed?)
    }
}
