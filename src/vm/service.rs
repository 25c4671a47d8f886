//! The containers of this node, each a virtual machine.
//!
//! Invariant: a task that changes a container holds its sandbox's lock, except for recording its
//! end and for changing a machine that runs, which have locks of their own; each effect is announced by a phase that is stored before it.
//! Failure: a request that fails half-way is undone, or leaves a phase that the next one settles.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libvirt::Hypervisor;
use podspec::{ContainerId, Defaults, SandboxId};
use tapmanager::wire::PodRoute;

use super::answers::Answers;
use super::console::Consoles;
use super::disks::seed::Surroundings;
use super::error::{Error, Result, hypervisor};
use super::exec::{Budget, slots::Slots};
use super::host::able::Obstacles;
use super::host::accelerator::Choice;
use super::host::equipment::LastLook;
use super::host::offer::LastOffer;
use super::host::process::Emulator;
use super::lifecycle::request::instance;
use super::model::{Container, ContainerConfig, Environment};
use super::paths::Paths;
use super::power::{Freezes, LateRequests};
use super::process::{Process, Processes};
use super::resources::CatchUps;
use super::resources::stats::Meter;
use super::settings::{Adjustable, Settings};
use super::shares::{Servers, Supplies, volumes};
use super::state::Event;
use super::stops::{Stop, Stops};
use super::unsupported::Given;
use super::users::{Owner, Users};
use crate::block::Blocks;
use crate::disk::Disks;
use crate::foreign::Foreign;
use crate::guest::Guests;
use crate::images::{self, Images};
use crate::locks::{Guard, Locks};
use crate::machine_socket::MachineSocket;
use crate::metadata::{LookupError, Table};
use crate::metrics::Metrics;
use crate::network::PodNetwork as _;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sources::Sources;
use crate::tasks::Tasks;

/// How long a request waits for a connection to libvirt that is being made again.
const RECONNECT: Duration = Duration::from_secs(5);

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

    /// The one container whose id begins with `prefix`.
    pub fn find(&self, prefix: &str) -> Result<Arc<Container>, LookupError> {
        self.parts.table.find(prefix, Container::is_listed)
    }

    /// All containers that clients may see. One that no client knows of yet is found by its id
    /// only.
    pub fn list(&self) -> Vec<Arc<Container>> {
        let mut all = self.parts.table.all();
        all.retain(|container| container.is_listed() && !self.is_kept_back(container));
        all
    }

    /// All containers that are machines, also those that clients do not see.
    pub fn machines(&self) -> Vec<Arc<Container>> {
        let mut all = self.parts.table.all();
        all.retain(|container| container.phase.is_listed() && container.boots());
        all
    }

    /// Changes whenever a container does.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.parts.table.changes()
    }

    /// The container that runs in the pod with this UID.
    pub fn machine_of_pod(&self, uid: &str) -> Option<Arc<Container>> {
        let mut all = self.parts.table.all().into_iter();
        all.find(|row| {
            let of_pod = |sandbox: Arc<Sandbox>| sandbox.config.metadata.uid == uid;
            row.phase.runs() && self.sandbox_of(row).is_some_and(of_pod)
        })
    }

    /// The sandbox of a container.
    pub fn sandbox_of(&self, row: &Container) -> Option<Arc<Sandbox>> {
        self.parts.sandboxes.get(&row.sandbox)
    }

    /// The namespace of a container's pod, among which places on the node are shared.
    pub fn namespace(&self, row: &Container) -> fair::Owner {
        let sandbox = self.sandbox_of(row);
        let namespace = sandbox.as_ref().map(|s| &*s.config.metadata.namespace);
        namespace.unwrap_or_default().into()
    }

    /// User and group that the machine of a container runs as, and that its files belong to.
    pub(super) fn owner(&self, row: &Container) -> Owner {
        Owner {
            uid: row.spec.user.unwrap_or(self.settings.uid),
            gid: self.settings.gid,
        }
    }

    /// The addresses of a pod's guest that the node reaches over the pod's own link. `None`: the
    /// tapmanager is of an earlier version and does not know.
    pub async fn routes(&self, sandbox: &SandboxId) -> Result<Option<Vec<PodRoute>>> {
        let routes = self.parts.network.routes(sandbox).await;
        routes.map_err(|source| Error::Network {
            id: sandbox.clone(),
            source,
        })
    }

    /// The socket that leads to `vmlet-guest` in a machine.
    pub(super) fn guest_port(&self, row: &Container) -> MachineSocket {
        self.machine_socket(row, self.paths.guest_socket(&row.id))
    }

    /// A socket of a machine, which its emulator listens on.
    pub(super) fn machine_socket(&self, row: &Container, path: PathBuf) -> MachineSocket {
        let user = self.owner(row).uid;
        MachineSocket { path, user }
    }

    /// The emulator of a container.
    pub(super) fn emulator(&self, row: &Container) -> Emulator {
        Emulator {
            domain: row.domain(),
            user: self.owner(row).uid,
        }
    }

    /// What is counted.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.metrics
    }

    /// Where the files of containers are.
    pub const fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The objects of the cluster that containers wait for.
    pub const fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// The accelerator and why it was chosen, once that is known.
    pub fn accelerator(&self) -> Option<Choice> {
        let chosen = self.accelerator.lock();
        chosen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a container in a ready sandbox.
    pub async fn create(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        mut config: ContainerConfig,
    ) -> Result<ContainerId> {
        let environment = std::mem::take(&mut config.environment);
        let ready = self.ready_sandbox(sandbox)?;
        let file_disks = self.wanted_file_disks(&ready, &config)?;
        let shares = self.wanted_shares(&ready, &config, &file_disks).await?;
        let given = Given::mounted(&config, &shares, &file_disks);
        self.refuse_loss(&ready, &config, &given)?;
        let has_image = !images::is_none(&config.image.user_specified_image);
        if has_image && instance(&ready, &config)?.vm.is_none() {
            self.bring_image(&ready, &config.image).await?;
        }
        let surroundings = Surroundings {
            environment,
            mounts: config.mounts.clone(),
            shares: shares.clone(),
            file_disks: file_disks.clone(),
        };
        let data = self.guest_data(&ready, &config, surroundings).await?;
        let supplies = Supplies {
            data,
            shares,
            file_disks,
        };
        let (this, sandbox) = (Arc::clone(self), sandbox.clone());
        let create = async move { this.create_to_end(&sandbox, config, supplies).await };
        let id = self.parts.tasks.finish(create).await?;
        // A caller that gave up does not get here.
        self.remember_answer(&id);
        Ok(id)
    }

    /// Makes a container that is a process of the pod machine.
    pub async fn create_in(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        mut config: ContainerConfig,
        process: Process,
    ) -> Result<ContainerId> {
        // The process has them.
        config.environment = Environment::default();
        let ready = self.ready_sandbox(sandbox)?;
        Self::refuse_file_disks(&ready, &config)?;
        volumes::check(&config)?;
        let given = self.given_to_process(&ready, &config)?;
        self.refuse_loss(&ready, &config, &given)?;
        if instance(&ready, &config)?.vm.is_some() {
            return Err(Error::VmOfProcesses(sandbox.clone()));
        }
        self.bring_image(&ready, &config.image).await?;
        let files = self
            .guest_data(&ready, &config, Surroundings::default())
            .await?;
        let (this, sandbox) = (Arc::clone(self), sandbox.clone());
        let create = async move { this.create_process(&sandbox, config, process, files).await };
        let id = self.parts.tasks.finish(create).await?;
        self.remember_answer(&id);
        Ok(id)
    }

    /// Starts the machine of a container; returns when QEMU runs.
    pub async fn start(self: &Arc<Self>, id: &ContainerId) -> Result<()> {
        let (this, id) = (Arc::clone(self), id.clone());
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
        let (this, id) = (Arc::clone(self), id.clone());
        self.parts
            .tasks
            .finish(async move { this.stop_to_end(&id, grace).await })
            .await
    }

    /// Removes a container, killing its machine; success when there is none.
    pub async fn remove(self: &Arc<Self>, id: &ContainerId) -> Result<()> {
        let (this, id) = (Arc::clone(self), id.clone());
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

    pub(super) fn row(&self, id: &ContainerId) -> Result<Arc<Container>> {
        let table = &self.parts.table;
        if let Some(row) = table.get(id) {
            return Ok(row);
        }
        table.aside().refuse(id.as_str())?;
        Err(Error::NoContainer(id.clone()))
    }

    /// Ends what would delay the stop of a sandbox, and what would begin again before it: copies of
    /// images, and creations and starts that wait for the sandbox's lock. Until the result is
    /// dropped, which the caller does when the stop is recorded.
    pub(crate) fn request_stop(&self, sandbox: &SandboxId) -> Stop {
        self.stops.request(sandbox)
    }

    /// All containers of a sandbox.
    pub(super) fn of_sandbox(&self, sandbox: &SandboxId) -> Vec<Arc<Container>> {
        let mut all = self.parts.table.all();
        all.retain(|container| container.sandbox == *sandbox);
        all
    }

    /// The sandbox, if machines may be made and started in it.
    pub(super) fn ready_sandbox(&self, id: &SandboxId) -> Result<Arc<Sandbox>> {
        self.check_sandbox(id)?;
        let sandbox = self
            .parts
            .sandboxes
            .get(id)
            .ok_or_else(|| Error::NoSandbox(id.clone()))?;
        let is_ready = sandbox.phase == crate::sandbox::state::Phase::Ready;
        (is_ready && !self.stops.is_requested(id))
            .then_some(sandbox)
            .ok_or_else(|| Error::SandboxNotReady(id.clone()))
    }

    /// Stores the phase after `event`, with whatever else `change` sets.
    pub(super) async fn move_on(
        &self,
        row: &Container,
        event: Event,
        verb: &'static str,
        change: impl FnOnce(&mut Container) + Send,
    ) -> Result<Arc<Container>> {
        let refused = || Error::Phase {
            id: row.id.clone(),
            phase: row.phase,
            verb,
        };
        let next = row.phase.on(event).ok_or_else(refused)?;
        let both = |row: &mut Container| {
            row.phase = next;
            change(row);
        };
        let table = &self.parts.table;
        let changed = match event {
            // A row that is Starting in the database is adopted or undone by the next daemon.
            Event::StopRequested
            | Event::Ended
            | Event::RemoveRequested
            | Event::StartUndone
            | Event::Started => table.change_to_end(&row.id, row.phase, both).await,
            Event::Prepared | Event::StartRequested | Event::Superseded => {
                table.change(&row.id, row.phase, both).await
            }
        };
        Ok(changed?)
    }

    /// Writes ends of containers that the database could not take before.
    pub async fn store_late(&self) -> Result<()> {
        Ok(self.parts.table.store_late().await?)
    }

    /// What applies when a pod specifies nothing about its machine.
    pub(super) fn defaults(&self) -> Defaults {
        self.adjustable().defaults
    }

    /// The settings that can change, as they are now.
    pub(super) fn adjustable(&self) -> Adjustable {
        *self
            .adjustable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses these defaults for containers that are created from now on.
    pub fn set_defaults(&self, defaults: Defaults) {
        self.change(|adjustable| adjustable.defaults = defaults);
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Adjustable)) {
        let adjustable = self.adjustable.lock();
        change(&mut adjustable.unwrap_or_else(PoisonError::into_inner));
    }

    /// Held while the end of a container is recorded, or its console is worked on while it runs.
    pub(super) async fn end_lock(&self, id: &ContainerId) -> Guard {
        self.parts.locks.lock(&format!("end of {id}")).await
    }

    /// Waits a moment for a connection to libvirt that is being made, as after its restart.
    pub(super) async fn check_connected(&self, step: &'static str) -> Result<()> {
        let connected = self.parts.hypervisor.connected();
        // Whether it came is looked up: events may be gone for good.
        let _ = tokio::time::timeout(RECONNECT, connected).await;
        if self.parts.hypervisor.is_connected() {
            return Ok(());
        }
        let seconds = RECONNECT.as_secs();
        let reason = format!("the connection is down, and did not come back within {seconds} s");
        Err(hypervisor(step)(libvirt::Error::Unavailable { reason }))
    }
}
