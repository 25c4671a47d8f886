//! A daemon's node API in this process: keeps its tasks over its own restarts, as the daemon keeps
//! them in its database, and does nothing to any machine.
//!
//! Invariant: a UID is run once however often it is sent; a forgotten task is removed; a stream
//! sends all that is known, then `synced`, then every change.
//! Failure: while it is stopped, calls fail as with a daemon that is away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nodeapi::v1::node_server::NodeServer as Service;
use nodeapi::v1::task_status::State;
use nodeapi::v1::{Disk, InfoResponse, Machine, MachineEvent, Pull, PullEvent, TaskStatus};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;

use self::memory::{Memory, ended, stands};

mod memory;
mod service;
mod settings;

/// What becomes of a task that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It succeeds at once.
    Succeed,
    /// It runs until the test ends it, or it is cancelled.
    Hold,
    /// It is refused as invalid.
    Refuse,
}

/// The daemon.
#[derive(Debug)]
pub struct NodeServer {
    socket: PathBuf,
    memory: Memory,
    /// One of its own, since connections live on tasks that only the end of a runtime ends.
    serving: Option<Runtime>,
}

impl NodeServer {
    /// A daemon that will listen on `socket`, not started.
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            memory: Memory::new(),
            serving: None,
        }
    }

    /// Listens.
    pub fn start(&mut self) -> Result<()> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&self.socket).context("bind the node API")?
        };
        let service = Service::new(self.memory.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        self.serving = Some(runtime);
        Ok(())
    }

    /// Stops as `kill -9` would: connections break, what is known stays.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(serving) = self.serving.take() {
            serving.shutdown_background();
            let mut known = self.memory.lock();
            known.task_watchers.clear();
            known.machine_watchers.clear();
            // They end with the daemon.
            known.pulls.clear();
            known.pull_watchers.clear();
        }
        std::fs::remove_file(&self.socket).context("remove the socket")
    }

    /// What becomes of tasks from now on.
    pub fn set_manner(&self, manner: Manner) {
        self.memory.lock().manner = manner;
    }

    /// Changes what the daemon says of itself and its node.
    pub fn set_info(&self, change: impl FnOnce(&mut InfoResponse)) {
        change(&mut self.memory.lock().info);
    }

    /// How often the task began.
    pub fn began(&self, uid: &str) -> u32 {
        let known = self.memory.lock();
        known.began.get(uid).copied().unwrap_or_default()
    }

    /// The state of a task; none when it is not known.
    pub fn task(&self, uid: &str) -> Option<TaskStatus> {
        let known = self.memory.lock();
        known.tasks.get(uid).map(|(_, status)| status.clone())
    }

    /// Changes the state of a task.
    pub fn set_task(&self, uid: &str, state: State, percent: u32, message: &str) -> Result<()> {
        let mut known = self.memory.lock();
        let (_, status) = known.tasks.get_mut(uid).context("the task is not known")?;
        ensure!(!ended(status), "{status:?} has ended");
        *status = stands(status, state, percent, message);
        let status = status.clone();
        known.notify(&status);
        Ok(())
    }

    /// A disk that it has from now on.
    pub fn set_disk(&self, disk: &Disk) {
        let mut known = self.memory.lock();
        known.disks.insert(disk.vm_uid.clone(), disk.clone());
    }

    /// A disk that it has no longer.
    pub fn remove_disk(&self, vm_uid: &str) {
        self.memory.lock().disks.remove(vm_uid);
    }

    /// UIDs of the machines whose disks it has: a task that removes one succeeds when it is sent.
    pub fn disks(&self) -> Vec<String> {
        self.memory.lock().disks.keys().cloned().collect()
    }

    /// The manifest of a disk, and how often it was sent.
    pub fn manifest(&self, vm_uid: &str) -> Option<(String, u32)> {
        let known = self.memory.lock();
        let (request, times) = known.manifests.get(vm_uid)?;
        let text = String::from_utf8_lossy(&request.manifest);
        Some((text.into_owned(), *times))
    }

    /// From now on it refuses manifests with these words, or takes them.
    pub fn refuse_manifests(&self, words: Option<&str>) {
        self.memory.lock().refusal = words.map(str::to_owned);
    }

    /// The settings that it was given last, by key, and how often it was given some.
    pub fn settings(&self) -> (BTreeMap<String, String>, u32) {
        let known = self.memory.lock();
        (known.settings.given(), known.settings.times)
    }

    /// From now on it knows no settings, as a daemon of before, or refuses that of this key.
    pub fn set_settings_manner(&self, is_old: bool, refused: Option<&str>) {
        let mut known = self.memory.lock();
        known.settings.is_old = is_old;
        known.settings.refused = refused.map(str::to_owned);
    }

    /// Sends a machine to all watchers.
    pub fn set_machine(&self, machine: &Machine) {
        let mut known = self.memory.lock();
        let uid = machine.pod_uid.clone();
        known.machines.insert(uid, machine.clone());
        let event = MachineEvent {
            machine: Some(machine.clone()),
            ..MachineEvent::default()
        };
        let to = &mut known.machine_watchers;
        to.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }

    /// Sends a pull that a pod waits for to all watchers.
    pub fn set_pull(&self, pull: &Pull) {
        let mut known = self.memory.lock();
        known.pulls.insert(pull.id.clone(), pull.clone());
        let event = PullEvent {
            pull: Some(pull.clone()),
            ..PullEvent::default()
        };
        let to = &mut known.pull_watchers;
        to.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown_background();
        }
    }
}
