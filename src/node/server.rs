//! The calls of the node API: decode, call, encode.
//!
//! One method per call is here; what takes more than a few lines to answer is in a file of its subject beside it.
//!
//! Invariant: no call waits for a guest, a copy or libvirt.
//! Failure: the codes of the contract (`server/codes.rs`); anything else is `INTERNAL` with the chain of causes.

use std::sync::Arc;
use std::time::Duration;

use nodeapi::v1;
use nodeapi::v1::node_server::Node;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::Services;
use super::uploads::Uploads;
use super::{exports, wire};
use crate::config::Config;
use crate::foreign::Foreign;
use crate::platform::Platform;
use codes::manifest_error;

mod codes;
mod disks;
mod info;
mod mappings;
mod watches;

/// The service.
#[derive(Debug)]
pub(super) struct Service<P: Platform> {
    services: Services<P>,
    uploads: Uploads,
    state_dir: std::path::PathBuf,
    /// Of the node's file systems.
    reader: Foreign<&'static str>,
    stop: CancellationToken,
}

/// Time for a look at a file system.
const LOOK: Duration = Duration::from_secs(5);

impl<P: Platform> Service<P> {
    pub(super) fn new(services: Services<P>, config: &Config, stop: CancellationToken) -> Self {
        Self {
            uploads: Uploads::new(Arc::clone(&services.images)),
            services,
            state_dir: config.state_dir.to_path_buf(),
            reader: Foreign::default(),
            stop,
        }
    }

    fn export(
        &self,
        requested: exports::Requested,
        received: Option<exports::Received>,
    ) -> ReceiverStream<Result<v1::ExportEvent, Status>> {
        let exports = self.services.exports.clone();
        exports::stream(exports, requested, received, self.stop.clone())
    }

    #[cfg(test)]
    pub(super) const fn services(&self) -> &Services<P> {
        &self.services
    }
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl<P: Platform> Node for Service<P> {
    type WatchTasksStream = ReceiverStream<Result<v1::TaskEvent, Status>>;
    type WatchMachinesStream = ReceiverStream<Result<v1::MachineEvent, Status>>;
    type WatchSourcesStream = ReceiverStream<Result<v1::SourceEvent, Status>>;
    type ExportDiskStream = ReceiverStream<Result<v1::ExportEvent, Status>>;
    type ExportSnapshotStream = ReceiverStream<Result<v1::ExportEvent, Status>>;
    type ExportBackupStream = ReceiverStream<Result<v1::ExportEvent, Status>>;
    type UploadImageStream = ReceiverStream<Result<v1::UploadEvent, Status>>;
    type WatchPullsStream = ReceiverStream<Result<v1::PullEvent, Status>>;

    async fn info(&self, _request: Request<v1::InfoRequest>) -> Reply<v1::InfoResponse> {
        Ok(Response::new(self.describe().await))
    }

    async fn run_task(&self, request: Request<v1::RunTaskRequest>) -> Reply<v1::TaskStatus> {
        let (uid, vm, work) = wire::task(request.into_inner())?;
        let task = self.services.agenda.submit(uid, vm, work).await?;
        Ok(Response::new(wire::status(&task)))
    }

    async fn watch_tasks(
        &self,
        _request: Request<v1::WatchTasksRequest>,
    ) -> Reply<Self::WatchTasksStream> {
        Ok(Response::new(self.task_events()))
    }

    async fn cancel_task(&self, request: Request<v1::CancelTaskRequest>) -> Reply<v1::TaskStatus> {
        let uid = wire::uid("uid", &request.into_inner().uid)?;
        let task = self.services.agenda.cancel(uid).await?;
        Ok(Response::new(wire::status(&task)))
    }

    async fn forget_task(
        &self,
        request: Request<v1::ForgetTaskRequest>,
    ) -> Reply<v1::ForgetTaskResponse> {
        let uid = wire::uid("uid", &request.into_inner().uid)?;
        self.services.agenda.forget(uid).await?;
        Ok(Response::new(v1::ForgetTaskResponse {}))
    }

    async fn list_disks(
        &self,
        _request: Request<v1::ListDisksRequest>,
    ) -> Reply<v1::ListDisksResponse> {
        let disks = self.listed_disks().await?;
        Ok(Response::new(v1::ListDisksResponse { disks }))
    }

    async fn watch_machines(
        &self,
        _request: Request<v1::WatchMachinesRequest>,
    ) -> Reply<Self::WatchMachinesStream> {
        Ok(Response::new(self.machine_events()))
    }

    async fn watch_sources(
        &self,
        _request: Request<v1::WatchSourcesRequest>,
    ) -> Reply<Self::WatchSourcesStream> {
        Ok(Response::new(self.source_events()))
    }

    async fn provide_source(
        &self,
        request: Request<v1::ProvideSourceRequest>,
    ) -> Reply<v1::ProvideSourceResponse> {
        let (id, answer) = wire::answer(request.into_inner())?;
        self.services.containers.sources().answer(id, answer);
        Ok(Response::new(v1::ProvideSourceResponse {}))
    }

    async fn watch_pulls(
        &self,
        _request: Request<v1::WatchPullsRequest>,
    ) -> Reply<Self::WatchPullsStream> {
        Ok(Response::new(self.pull_events()))
    }

    async fn set_image_mappings(
        &self,
        request: Request<v1::SetImageMappingsRequest>,
    ) -> Reply<v1::SetImageMappingsResponse> {
        let mappings = request.into_inner().mappings;
        let results = self.replace_mappings(mappings).await?;
        Ok(Response::new(v1::SetImageMappingsResponse { results }))
    }

    async fn set_node_settings(
        &self,
        request: Request<v1::SetNodeSettingsRequest>,
    ) -> Reply<v1::SetNodeSettingsResponse> {
        let request = request.into_inner();
        let keys: Vec<_> = request.settings.iter().map(|s| s.key.clone()).collect();
        let request = wire::node_settings(request)?;
        let replaced = self.services.settings.replace(request).await;
        let answer = replaced.map_err(|e| wire::settings_error(&e))?;
        Ok(Response::new(wire::settings_answer(&keys, answer)))
    }

    async fn export_disk(
        &self,
        request: Request<v1::ExportDiskRequest>,
    ) -> Reply<Self::ExportDiskStream> {
        exports::refuse_agent(&request)?;
        let (requested, received) = wire::export(&request.into_inner())?;
        Ok(Response::new(self.export(requested, received)))
    }

    async fn export_snapshot(
        &self,
        request: Request<v1::ExportSnapshotRequest>,
    ) -> Reply<Self::ExportSnapshotStream> {
        exports::refuse_agent(&request)?;
        let (requested, received) = wire::export_snapshot(&request.into_inner())?;
        Ok(Response::new(self.export(requested, received)))
    }

    async fn export_backup(
        &self,
        request: Request<v1::ExportBackupRequest>,
    ) -> Reply<Self::ExportBackupStream> {
        exports::refuse_agent(&request)?;
        let (requested, received) = wire::export_backup(&request.into_inner())?;
        Ok(Response::new(self.export(requested, received)))
    }

    async fn forget_export(
        &self,
        request: Request<v1::ForgetExportRequest>,
    ) -> Reply<v1::ForgetExportResponse> {
        exports::refuse_agent(&request)?;
        let source = wire::complete_export(&request.into_inner())?;
        let forgotten = self.services.exports.forget(source).await;
        forgotten
            .map_err(|e| Status::internal(format!("remove the copy: {}", crate::one_line(&e))))?;
        Ok(Response::new(v1::ForgetExportResponse {}))
    }

    async fn upload_image(
        &self,
        request: Request<Streaming<v1::UploadRequest>>,
    ) -> Reply<Self::UploadImageStream> {
        exports::refuse_agent(&request)?;
        let stop = self.stop.clone();
        Ok(Response::new(
            self.uploads.stream(request.into_inner(), stop),
        ))
    }

    async fn set_manifest(
        &self,
        request: Request<v1::SetManifestRequest>,
    ) -> Reply<v1::SetManifestResponse> {
        let (vm, manifest) = wire::manifest(request.into_inner())?;
        let kept = self.services.disks.set_manifest(vm, manifest).await;
        kept.map_err(|error| manifest_error(&error))?;
        Ok(Response::new(v1::SetManifestResponse {}))
    }

    async fn get_manifest(
        &self,
        request: Request<v1::GetManifestRequest>,
    ) -> Reply<v1::GetManifestResponse> {
        // The agent writes them, and reads none.
        exports::refuse_agent(&request)?;
        let vm = wire::uid("vm_uid", &request.into_inner().vm_uid)?;
        let manifest = self.manifest_of(vm).await?;
        Ok(Response::new(v1::GetManifestResponse {
            cluster_uid: manifest.cluster,
            manifest: manifest.text.into_bytes(),
        }))
    }
}
