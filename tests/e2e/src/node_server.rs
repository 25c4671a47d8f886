//! A daemon's node API in this process: keeps its tasks over its own restarts, as the daemon keeps
//! them in its database, and does nothing to any machine.
//!
//! Invariant: a UID is run once however often it is sent; a forgotten task is removed; a stream
//! sends all that is known, then `synced`, then every change.
//! Failure: while it is stopped, calls fail as with a daemon that is away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use nodeapi::v1::node_server::{Node, NodeServer as Service};
use nodeapi::v1::run_task_request::Kind;
use nodeapi::v1::task_status::State;
use nodeapi::v1::{
    CancelTaskRequest, Disk, ExportDiskRequest, ExportEvent, ForgetExportRequest,
    ForgetExportResponse, ForgetTaskRequest, ForgetTaskResponse, GetManifestRequest,
    GetManifestResponse, InfoRequest, InfoResponse, ListDisksRequest, ListDisksResponse, Machine,
    MachineEvent, ProvideSourceRequest, ProvideSourceResponse, Pull, PullEvent, RunTaskRequest,
    SetImageMappingsRequest, SetImageMappingsResponse, SetManifestRequest, SetManifestResponse,
    SetNodeSettingsRequest, SetNodeSettingsResponse, SourceEvent, TaskEvent, TaskStatus,
    UploadEvent, UploadRequest, WatchMachinesRequest, WatchPullsRequest, WatchSourcesRequest,
    WatchTasksRequest,
};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::Pending;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

use settings::NodeSettings;

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

#[derive(Debug, Clone)]
struct Memory(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    manner: Manner,
    info: InfoResponse,
    tasks: BTreeMap<String, (RunTaskRequest, TaskStatus)>,
    /// How often each UID was started, over the lifetime of the server.
    began: BTreeMap<String, u32>,
    machines: BTreeMap<String, Machine>,
    disks: BTreeMap<String, Disk>,
    /// Each with the times that it was sent.
    manifests: BTreeMap<String, (SetManifestRequest, u32)>,
    /// Refuses manifests with these words.
    refusal: Option<String>,
    settings: NodeSettings,
    task_watchers: Vec<UnboundedSender<Result<TaskEvent, Status>>>,
    machine_watchers: Vec<UnboundedSender<Result<MachineEvent, Status>>>,
    pulls: BTreeMap<String, Pull>,
    pull_watchers: Vec<UnboundedSender<Result<PullEvent, Status>>>,
}

impl NodeServer {
    /// A daemon that will listen on `socket`, not started.
    pub fn new(socket: &Path) -> Self {
        let kinds = ["provision", "delete_disk", "guest_reboot", "reset", "save"];
        let known = Known {
            manner: Manner::Succeed,
            info: InfoResponse {
                version: "9.9.9".to_owned(),
                installation_id: "installation".to_owned(),
                accelerator: "tcg".to_owned(),
                task_kinds: kinds.map(str::to_owned).to_vec(),
                disk_capacity_bytes: 1000,
                disk_available_bytes: 500,
                ..InfoResponse::default()
            },
            tasks: BTreeMap::new(),
            began: BTreeMap::new(),
            machines: BTreeMap::new(),
            disks: BTreeMap::new(),
            manifests: BTreeMap::new(),
            refusal: None,
            settings: NodeSettings::default(),
            task_watchers: Vec::new(),
            machine_watchers: Vec::new(),
            pulls: BTreeMap::new(),
            pull_watchers: Vec::new(),
        };
        Self {
            socket: socket.to_owned(),
            memory: Memory(Arc::new(Mutex::new(known))),
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

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn notify(&mut self, status: &TaskStatus) {
        let event = TaskEvent {
            task: Some(status.clone()),
            synced: false,
        };
        let to = &mut self.task_watchers;
        to.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }
}

/// The next standing of a task.
fn stands(status: &TaskStatus, state: State, percent: u32, message: &str) -> TaskStatus {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_millis()).unwrap_or_default();
    let mut next = TaskStatus {
        state: state.into(),
        progress_percent: percent,
        message: message.to_owned(),
        ..status.clone()
    };
    if next.started_ms == 0 && state != State::Queued {
        next.started_ms = now;
    }
    if ended(&next) {
        next.completed_ms = now;
    }
    next
}

fn ended(status: &TaskStatus) -> bool {
    matches!(
        status.state(),
        State::Success | State::Error | State::Cancelled
    )
}

#[tonic::async_trait]
impl Node for Memory {
    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Ok(Response::new(self.lock().info.clone()))
    }

    async fn run_task(
        &self,
        request: Request<RunTaskRequest>,
    ) -> Result<Response<TaskStatus>, Status> {
        let request = request.into_inner();
        let mut known = self.lock();
        if let Some((same, status)) = known.tasks.get(&request.uid) {
            if *same != request {
                return Err(Status::invalid_argument("the uid has another content"));
            }
            return Ok(Response::new(status.clone()));
        }
        let state = match known.manner {
            Manner::Succeed => State::Success,
            Manner::Hold => State::Running,
            Manner::Refuse => return Err(Status::invalid_argument("no such image name")),
        };
        *known.began.entry(request.uid.clone()).or_default() += 1;
        if let (Some(Kind::DeleteDisk(_)), State::Success) = (&request.kind, state) {
            known.disks.remove(&request.vm_uid);
        }
        let new = TaskStatus {
            uid: request.uid.clone(),
            vm_uid: request.vm_uid.clone(),
            ..TaskStatus::default()
        };
        let status = stands(&new, state, 0, "");
        let entry = (request.clone(), status.clone());
        known.tasks.insert(request.uid, entry);
        known.notify(&status);
        Ok(Response::new(status))
    }

    type WatchTasksStream = UnboundedReceiverStream<Result<TaskEvent, Status>>;

    async fn watch_tasks(
        &self,
        _: Request<WatchTasksRequest>,
    ) -> Result<Response<Self::WatchTasksStream>, Status> {
        let (sender, receiver) = unbounded_channel();
        let mut known = self.lock();
        for (_, status) in known.tasks.values() {
            let task = Some(status.clone());
            let _ = sender.send(Ok(TaskEvent {
                task,
                synced: false,
            }));
        }
        let _ = sender.send(Ok(TaskEvent {
            task: None,
            synced: true,
        }));
        known.task_watchers.push(sender);
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<TaskStatus>, Status> {
        let mut known = self.lock();
        let found = known.tasks.get_mut(&request.into_inner().uid);
        let (_, status) = found.ok_or_else(|| Status::not_found("no such task"))?;
        if !ended(status) {
            *status = stands(status, State::Cancelled, status.progress_percent, "");
        }
        let status = status.clone();
        known.notify(&status);
        Ok(Response::new(status))
    }

    async fn forget_task(
        &self,
        request: Request<ForgetTaskRequest>,
    ) -> Result<Response<ForgetTaskResponse>, Status> {
        let uid = request.into_inner().uid;
        let mut known = self.lock();
        if known.tasks.get(&uid).is_some_and(|(_, s)| !ended(s)) {
            return Err(Status::failed_precondition("the task has not ended"));
        }
        known.tasks.remove(&uid);
        Ok(Response::new(ForgetTaskResponse {}))
    }

    async fn list_disks(
        &self,
        _: Request<ListDisksRequest>,
    ) -> Result<Response<ListDisksResponse>, Status> {
        let known = self.lock();
        let disks = known.disks.values().cloned().map(|mut disk| {
            if let Some((manifest, _)) = known.manifests.get(&disk.vm_uid) {
                disk.manifest_bytes = manifest.manifest.len() as u64;
                disk.cluster_uid.clone_from(&manifest.cluster_uid);
            }
            disk
        });
        let disks = disks.collect();
        Ok(Response::new(ListDisksResponse { disks }))
    }

    type WatchMachinesStream = UnboundedReceiverStream<Result<MachineEvent, Status>>;

    async fn watch_machines(
        &self,
        _: Request<WatchMachinesRequest>,
    ) -> Result<Response<Self::WatchMachinesStream>, Status> {
        let (sender, receiver) = unbounded_channel();
        let mut known = self.lock();
        for machine in known.machines.values() {
            let machine = Some(machine.clone());
            let _ = sender.send(Ok(MachineEvent {
                machine,
                ..MachineEvent::default()
            }));
        }
        let _ = sender.send(Ok(MachineEvent {
            synced: true,
            ..MachineEvent::default()
        }));
        known.machine_watchers.push(sender);
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }

    type WatchSourcesStream = Pending<Result<SourceEvent, Status>>;

    async fn watch_sources(
        &self,
        _: Request<WatchSourcesRequest>,
    ) -> Result<Response<Self::WatchSourcesStream>, Status> {
        // No guest is made here, so nothing is ever waited for.
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn provide_source(
        &self,
        _: Request<ProvideSourceRequest>,
    ) -> Result<Response<ProvideSourceResponse>, Status> {
        Ok(Response::new(ProvideSourceResponse {}))
    }

    type WatchPullsStream = UnboundedReceiverStream<Result<PullEvent, Status>>;

    async fn watch_pulls(
        &self,
        _: Request<WatchPullsRequest>,
    ) -> Result<Response<Self::WatchPullsStream>, Status> {
        let (sender, receiver) = unbounded_channel();
        let mut known = self.lock();
        for pull in known.pulls.values() {
            let _ = sender.send(Ok(PullEvent {
                pull: Some(pull.clone()),
                ..PullEvent::default()
            }));
        }
        let _ = sender.send(Ok(PullEvent {
            synced: true,
            ..PullEvent::default()
        }));
        known.pull_watchers.push(sender);
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }

    async fn set_image_mappings(
        &self,
        _: Request<SetImageMappingsRequest>,
    ) -> Result<Response<SetImageMappingsResponse>, Status> {
        Ok(Response::new(SetImageMappingsResponse::default()))
    }

    async fn set_node_settings(
        &self,
        request: Request<SetNodeSettingsRequest>,
    ) -> Result<Response<SetNodeSettingsResponse>, Status> {
        let taken = self.lock().settings.take(request.into_inner());
        taken.map(Response::new)
    }

    type ExportDiskStream = Pending<Result<ExportEvent, Status>>;

    async fn export_disk(
        &self,
        _: Request<ExportDiskRequest>,
    ) -> Result<Response<Self::ExportDiskStream>, Status> {
        Err(Status::unimplemented("no disk has a file here"))
    }

    async fn forget_export(
        &self,
        _: Request<ForgetExportRequest>,
    ) -> Result<Response<ForgetExportResponse>, Status> {
        Ok(Response::new(ForgetExportResponse {}))
    }

    type UploadImageStream = Pending<Result<UploadEvent, Status>>;

    async fn upload_image(
        &self,
        _: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<Self::UploadImageStream>, Status> {
        Err(Status::unimplemented("no image has a file here"))
    }

    async fn set_manifest(
        &self,
        request: Request<SetManifestRequest>,
    ) -> Result<Response<SetManifestResponse>, Status> {
        let request = request.into_inner();
        let mut known = self.lock();
        if let Some(words) = known.refusal.clone() {
            return Err(Status::internal(words));
        }
        let vm = request.vm_uid.clone();
        let times = known.manifests.get(&vm).map_or(0, |(_, times)| *times);
        known.manifests.insert(vm, (request, times + 1));
        Ok(Response::new(SetManifestResponse {}))
    }

    async fn get_manifest(
        &self,
        request: Request<GetManifestRequest>,
    ) -> Result<Response<GetManifestResponse>, Status> {
        let uid = request.into_inner().vm_uid;
        let known = self.lock();
        let found = known.manifests.get(&uid).map(|(found, _)| found.clone());
        let found = found.ok_or_else(|| Status::not_found("no manifest"))?;
        Ok(Response::new(GetManifestResponse {
            cluster_uid: found.cluster_uid,
            manifest: found.manifest,
        }))
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown_background();
        }
    }
}
