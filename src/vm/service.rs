//! The containers of this node, each a virtual machine.
//!
//! Invariant: a task that changes a container holds its sandbox's lock, except for recording its
//! end and for changing a machine that runs, which have locks of their own; each effect is announced by a phase that is stored before it.
//! Failure: a request that fails half-way is undone, or leaves a phase that the next one settles.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podspec::{ContainerId, SandboxId};

mod adjust;
mod change;
mod create;
mod lookup;

use super::answers::Answers;
use super::console::Consoles;
use super::error::{Error, Result};
use super::exec::{Budget, slots::Slots};
use super::host::able::Obstacles;
use super::host::accelerator::Choice;
use super::host::equipment::LastLook;
use super::host::offer::LastOffer;
use super::model::Container;
use super::paths::Paths;
use super::power::{Freezes, LateRequests};
use super::process::Processes;
use super::resources::CatchUps;
use super::resources::stats::Meter;
use super::settings::{Adjustable, Settings};
use super::shares::Servers;
use super::stops::{Stop, Stops};
use super::users::Users;
use crate::block::Blocks;
use crate::disk::Disks;
use crate::foreign::Foreign;
use crate::guest::Guests;
use crate::images::Images;
use crate::locks::Locks;
use crate::metadata::Table;
use crate::metrics::Metrics;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sources::Sources;
use crate::tasks::Tasks;

/// The services and rows that machines are made from.
#[derive(Debug)]
pub struct Parts<P: Platform> {
    /// Rows of containers.
    pub table: Arc<Table<Container>>,
    /// Rows of sandboxes, read only.
    pub sandboxes: Arc<Table<Sandbox>>,
    /// Runs the machines.
    pub hypervisor: Arc<P::Hypervisor>,
    /// Hands out their taps.
    pub network: Arc<P::Network>,
    /// Holds their images.
    pub images: Arc<Images>,
    /// Holds the disks that outlive pods.
    pub disks: Arc<Disks>,
    /// Holds the devices that are disks.
    pub blocks: Arc<Blocks>,
    /// Shared with the sandboxes.
    pub locks: Locks,
    /// Shared with the sandboxes.
    pub tasks: Tasks,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// The containers of this node.
#[derive(Debug)]
pub struct Containers<P: Platform> {
    pub(super) parts: Parts<P>,
    pub(super) settings: Settings,
    pub(super) paths: Paths,
    pub(super) adjustable: Mutex<Adjustable>,
    pub(super) accelerator: Mutex<Option<Choice>>,
    /// Held by the one that probes.
    pub(super) probing: tokio::sync::Mutex<()>,
    pub(super) obstacles: Obstacles,
    pub(super) equipment: LastLook,
    pub(super) offer: LastOffer,
    pub(super) consoles: Consoles,
    pub(super) meter: Meter,
    pub(super) exec_slots: Slots,
    pub(super) exec_budget: Budget,
    pub(super) guests: Arc<Guests>,
    pub(super) processes: Processes,
    pub(super) sources: Arc<Sources>,
    /// Containers with a task that sees their stop through.
    pub(super) stoppers: Mutex<HashSet<ContainerId>>,
    /// Why guests that are being killed could not power off.
    pub(super) unresponsive: Mutex<HashMap<ContainerId, String>>,
    pub(super) catch_ups: CatchUps,
    pub(super) users: Users,
    pub(super) stops: Stops,
    pub(super) freezes: Freezes,
    pub(super) late_requests: LateRequests,
    /// Of shares, while their machines run.
    pub(super) servers: Arc<Servers>,
    /// Threads that work on volumes.
    pub(super) foreign: Foreign,
    /// Containers that this process created, and whether their clients have the answer.
    pub(super) answers: Answers,
    /// UIDs of pods with pull secrets that were not used, oldest first.
    pub(super) unused_secrets: Mutex<VecDeque<String>>,
}

impl<P: Platform> Containers<P> {
    /// The service over these parts.
    pub fn new(parts: Parts<P>, settings: Settings) -> Self {
        let paths = Paths::new(&settings.state_dir);
        let late_requests = LateRequests::new(&parts.disks);
        Self {
            parts,
            adjustable: Mutex::new(Adjustable::from(&settings)),
            settings,
            paths,
            accelerator: Mutex::default(),
            probing: tokio::sync::Mutex::default(),
            obstacles: Obstacles::default(),
            equipment: LastLook::default(),
            offer: LastOffer::default(),
            consoles: Consoles::default(),
            meter: Meter::default(),
            exec_slots: Slots::default(),
            exec_budget: Budget::default(),
            guests: Arc::default(),
            processes: Processes::default(),
            sources: Arc::default(),
            stoppers: Mutex::default(),
            unresponsive: Mutex::default(),
            catch_ups: CatchUps::default(),
            users: Users::default(),
            stops: Stops::default(),
            freezes: Freezes::default(),
            late_requests,
            servers: Arc::default(),
            foreign: Foreign::default(),
            answers: Answers::default(),
            unused_secrets: Mutex::default(),
        }
    }

    /// Starts the machine of a container; returns when QEMU runs.
    pub async fn start(self: &Arc<Self>, id: &ContainerId) -> Result<()> {
        let this = Arc::clone(self);
        let id = id.clone();
        self.parts
            .tasks
            .finish(async move {
                let row = this.row(&id)?;
                this.check_readable(&row)?;
                if row.is_process() {
                    return this.start_process(&id).await;
                }
                this.start_to_end(&id).await?;
                this.catch_up(&id);
                Ok(())
            })
            .await
    }

    /// Requests the guest to power off and kills it after `grace`; returns when it has ended.
    pub async fn stop(self: &Arc<Self>, id: &ContainerId, grace: Duration) -> Result<()> {
        let this = Arc::clone(self);
        let id = id.clone();
        self.parts
            .tasks
            .finish(async move { this.stop_to_end(&id, grace).await })
            .await
    }

    /// Removes a container, killing its machine; success when there is none.
    pub async fn remove(self: &Arc<Self>, id: &ContainerId) -> Result<()> {
        let this = Arc::clone(self);
        let id = id.clone();
        self.parts
            .tasks
            .finish(async move { this.remove_to_end(&id).await })
            .await
    }

    /// Starts a new log file after the client renamed the old one.
    pub async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        let _end = self.end_lock(id).await;
        let row = self.row(id)?;
        if !row.phase.runs() {
            return Err(Error::Phase {
                id: id.clone(),
                phase: row.phase,
                verb: "given a new log",
            });
        }
        if row.is_process() {
            return self.reopen_process_log(&row).await;
        }
        // Not followed yet when the daemon has just started and libvirt is away.
        self.follow(&row).await?;
        Ok(self.consoles.reopen(id).await?)
    }

    /// Ends what would delay the stop of a sandbox, and what would begin again before it: copies of
    /// images, and creations and starts that wait for the sandbox's lock. Until the result is
    /// dropped, which the caller does when the stop is recorded.
    pub(crate) fn request_stop(&self, sandbox: &SandboxId) -> Stop {
        self.stops.request(sandbox)
    }
}
