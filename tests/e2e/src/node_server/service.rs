//! The calls of the node API, from what the daemon of a test knows.
//!
//! Invariant: a stream sends all that is known, then `synced`, then every change.
//! Failure: the status that the daemon would answer with.

use nodeapi::v1::node_server::Node;
use nodeapi::v1::run_task_request::Kind;
use nodeapi::v1::task_status::State;
use nodeapi::v1::{
    CancelTaskRequest, ExportBackupRequest, ExportDiskRequest, ExportEvent, ExportSnapshotRequest,
    ForgetExportRequest, ForgetExportResponse, ForgetTaskRequest, ForgetTaskResponse,
    GetManifestRequest, GetManifestResponse, InfoRequest, InfoResponse, ListDisksRequest,
    ListDisksResponse, MachineEvent, ProvideSourceRequest, ProvideSourceResponse, PullEvent,
    RunTaskRequest, SetImageMappingsRequest, SetImageMappingsResponse, SetManifestRequest,
    SetManifestResponse, SetNodeSettingsRequest, SetNodeSettingsResponse, SourceEvent, TaskEvent,
    TaskStatus, UploadEvent, UploadRequest, WatchMachinesRequest, WatchPullsRequest,
    WatchSourcesRequest, WatchTasksRequest,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::Pending;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Manner;
use super::memory::{Memory, ended, stands};

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
        if matches!(request.kind, Some(Kind::DeleteDisk(_))) && matches!(state, State::Success) {
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

    type ExportSnapshotStream = Pending<Result<ExportEvent, Status>>;

    async fn export_snapshot(
        &self,
        _: Request<ExportSnapshotRequest>,
    ) -> Result<Response<Self::ExportSnapshotStream>, Status> {
        Err(Status::unimplemented("no snapshot has a file here"))
    }

    type ExportBackupStream = Pending<Result<ExportEvent, Status>>;

    async fn export_backup(
        &self,
        _: Request<ExportBackupRequest>,
    ) -> Result<Response<Self::ExportBackupStream>, Status> {
        Err(Status::unimplemented("no backup has a file here"))
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
