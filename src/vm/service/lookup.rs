//! Finds containers, and what belongs to them: sandbox, namespace, user, sockets.
//!
//! Invariant: answers come from rows in memory, but for the routes, which the tapmanager knows.
//! Failure: an id that no row has, or whose row cannot be read.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use podspec::{ContainerId, SandboxId};
use tapmanager::wire::PodRoute;

use super::Containers;
use crate::machine_socket::MachineSocket;
use crate::metadata::LookupError;
use crate::metrics::Metrics;
use crate::network::PodNetwork as _;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::sources::Sources;
use crate::vm::error::{Error, Result};
use crate::vm::host::accelerator::Choice;
use crate::vm::host::process::Emulator;
use crate::vm::model::Container;
use crate::vm::paths::Paths;
use crate::vm::users::Owner;

impl<P: Platform> Containers<P> {
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

    pub(in crate::vm) fn row(&self, id: &ContainerId) -> Result<Arc<Container>> {
        let table = &self.parts.table;
        if let Some(row) = table.get(id) {
            return Ok(row);
        }
        table.aside().refuse(id.as_str())?;
        Err(Error::NoContainer(id.clone()))
    }

    /// All containers of a sandbox.
    pub(in crate::vm) fn of_sandbox(&self, sandbox: &SandboxId) -> Vec<Arc<Container>> {
        let mut all = self.parts.table.all();
        all.retain(|container| container.sandbox == *sandbox);
        all
    }

    /// The sandbox of a container.
    pub fn sandbox_of(&self, row: &Container) -> Option<Arc<Sandbox>> {
        self.parts.sandboxes.get(&row.sandbox)
    }

    /// The sandbox, if machines may be made and started in it.
    pub(in crate::vm) fn ready_sandbox(&self, id: &SandboxId) -> Result<Arc<Sandbox>> {
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

    /// The namespace of a container's pod, among which places on the node are shared.
    pub fn namespace(&self, row: &Container) -> fair::Owner {
        let sandbox = self.sandbox_of(row);
        let namespace = sandbox.as_ref().map(|s| &*s.config.metadata.namespace);
        namespace.unwrap_or_default().into()
    }

    /// User and group that the machine of a container runs as, and that its files belong to.
    pub(in crate::vm) fn owner(&self, row: &Container) -> Owner {
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
    pub(in crate::vm) fn guest_port(&self, row: &Container) -> MachineSocket {
        self.machine_socket(row, self.paths.guest_socket(&row.id))
    }

    /// A socket of a machine, which its emulator listens on.
    pub(in crate::vm) fn machine_socket(&self, row: &Container, path: PathBuf) -> MachineSocket {
        let user = self.owner(row).uid;
        MachineSocket { path, user }
    }

    /// The emulator of a container.
    pub(in crate::vm) fn emulator(&self, row: &Container) -> Emulator {
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
}
