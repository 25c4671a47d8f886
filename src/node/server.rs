//! The calls of the node API: decode, call, encode.
//!
//! Invariant: no call waits for a guest, a copy or libvirt.
//! Failure: the codes of the contract; anything else is `INTERNAL` with the chain of causes.

use std::sync::Arc;
use std::time::Duration;

use nodeapi::v1;
use nodeapi::v1::node_server::Node;
use nodeapi::v1::run_task_request::Kind;
use strum::VariantNames as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::Services;
use super::agenda::Refused;
use super::uploads::Uploads;
use super::watch::{Change, stream};
use super::{describe, exports, wire};
use crate::config::Config;
use crate::disk::{self, Disks};
use crate::foreign::Foreign;
use crate::images::ClusterMapping;
use crate::platform::Platform;

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

    /// What this daemon can do and earlier ones cannot, and the targets of backups that it has.
    fn features(&self) -> Vec<String> {
        let known = [
            podspec::names::DISK_WITHOUT_IMAGE,
            podspec::names::DISK_MANIFESTS,
            podspec::names::IMAGE_DIGESTS,
            podspec::names::IMAGE_CHECKSUMS,
            podspec::names::DISK_PULLS,
            podspec::names::SNAPSHOT_MEMORY,
        ];
        let targets = self.services.agenda.targets.names();
        let targets = targets.map(|name| format!("{}{name}", podspec::names::BACKUP_TARGET));
        let known = known.map(str::to_owned).into_iter();
        known.chain(targets).collect()
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
        let state_dir = self.state_dir.clone();
        let look = move || nix::sys::statvfs::statvfs(&state_dir);
        let space = self.reader.read("space", LOOK, look).await;
        let space = space.and_then(Result::ok);
        let bytes = |blocks: fn(&nix::sys::statvfs::Statvfs) -> u64| {
            let space = space.as_ref();
            space.map_or(0, |s| blocks(s).saturating_mul(s.fragment_size()))
        };
        let report = self.services.health.last_report();
        let versions = report.as_ref().and_then(|r| r.hypervisor.as_ref().ok());
        // While libvirt is away they are those of the last connection.
        let versions = versions
            .cloned()
            .or_else(|| self.services.machines.versions());
        let accelerator = self.services.containers.accelerator();
        Ok(Response::new(v1::InfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            installation_id: self.services.identity.installation.clone(),
            boot_id: self.services.identity.boot.clone(),
            accelerator: accelerator
                .map(|choice| choice.accelerator.to_string())
                .unwrap_or_default(),
            libvirt_version: versions
                .as_ref()
                .map(|v| v.libvirt.clone())
                .unwrap_or_default(),
            qemu_version: versions.map(|v| v.qemu).unwrap_or_default(),
            task_kinds: Kind::VARIANTS.iter().map(ToString::to_string).collect(),
            disk_capacity_bytes: bytes(|s| s.blocks()),
            disk_available_bytes: bytes(|s| s.blocks_available()),
            machine_types: self.services.containers.offer().machine_types,
            bound_machines: self.services.containers.bound().await,
            emulated_because: self
                .services
                .containers
                .emulated_because()
                .unwrap_or_default(),
            features: self.features(),
            host: report.as_deref().map(wire::host),
        }))
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
        let agenda = Arc::clone(&self.services.agenda);
        let changes = vec![agenda.changes()];
        let look = move || agenda.all().into_iter().map(|t| (t.uid, t)).collect();
        let encode = |change: Change<'_, _, Arc<super::Task>>| match change {
            Change::Is(task) => Some(v1::TaskEvent {
                task: Some(wire::status(task)),
                synced: false,
            }),
            Change::Gone(_) => None,
            Change::Synced => Some(v1::TaskEvent {
                task: None,
                synced: true,
            }),
        };
        let stop = self.stop.clone();
        Ok(Response::new(stream(changes, look, encode, stop)))
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
        let disks = Arc::clone(&self.services.disks);
        let looked = self
            .reader
            .read("disks", LOOK, move || listed(&disks))
            .await;
        let hangs =
            || Status::unavailable("the file system of the disks does not answer: try again");
        let disks = looked.ok_or_else(hangs)?;
        let disks = disks.map_err(|error| Status::internal(crate::one_line(&error)))?;
        Ok(Response::new(v1::ListDisksResponse { disks }))
    }

    async fn watch_machines(
        &self,
        _request: Request<v1::WatchMachinesRequest>,
    ) -> Reply<Self::WatchMachinesStream> {
        let machines = Arc::clone(&self.services.machines);
        let probes = Arc::clone(&self.services.probes);
        let disks = Arc::clone(&self.services.disks);
        let changes = vec![
            self.services.containers.changes(),
            self.services.containers.share_changes(),
            disks.changes(),
            machines.changes(),
            probes.changes(),
        ];
        let look = move || describe::all(&machines, &probes, &disks);
        let encode = |change: Change<'_, podspec::ContainerId, v1::Machine>| {
            Some(match change {
                Change::Is(machine) => v1::MachineEvent {
                    machine: Some(machine.clone()),
                    ..v1::MachineEvent::default()
                },
                Change::Gone(container) => v1::MachineEvent {
                    machine: Some(v1::Machine {
                        container_id: container.to_string(),
                        ..v1::Machine::default()
                    }),
                    gone: true,
                    ..v1::MachineEvent::default()
                },
                Change::Synced => v1::MachineEvent {
                    synced: true,
                    ..v1::MachineEvent::default()
                },
            })
        };
        let stop = self.stop.clone();
        Ok(Response::new(stream(changes, look, encode, stop)))
    }

    async fn watch_sources(
        &self,
        _request: Request<v1::WatchSourcesRequest>,
    ) -> Reply<Self::WatchSourcesStream> {
        let sources = Arc::clone(self.services.containers.sources());
        let changes = vec![sources.changes()];
        let look = move || {
            let all = sources.wanted().into_iter();
            all.map(|(id, wanted)| (id, (id, wanted))).collect()
        };
        let encode = |change: Change<'_, _, _>| Some(wire::source_event(&change));
        let stop = self.stop.clone();
        Ok(Response::new(stream(changes, look, encode, stop)))
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
        let images = Arc::clone(&self.services.images);
        let changes = vec![images.pod_pull_changes()];
        let look = move || {
            let all = images.pod_pulls().into_iter();
            all.map(|(id, pull)| (id, (id, pull))).collect()
        };
        let encode = |change: Change<'_, _, _>| Some(wire::pull_event(&change));
        let stop = self.stop.clone();
        Ok(Response::new(stream(changes, look, encode, stop)))
    }

    async fn set_image_mappings(
        &self,
        request: Request<v1::SetImageMappingsRequest>,
    ) -> Reply<v1::SetImageMappingsResponse> {
        let mappings = request.into_inner().mappings.into_iter();
        let mapping = |v1::ImageMapping { name, rules, keep }| ClusterMapping {
            name,
            rules: (!keep).then_some(rules),
        };
        let mappings: Vec<_> = mappings.map(mapping).collect();
        let names: Vec<_> = mappings.iter().map(|m| m.name.clone()).collect();
        let replaced = self
            .services
            .images
            .replace_cluster_mappings(mappings)
            .await;
        let refused = replaced.map_err(|e| Status::internal(crate::one_line(&e)))?;
        let results =
            names
                .into_iter()
                .zip(refused)
                .map(|(name, refused)| v1::ImageMappingResult {
                    name,
                    error: refused.unwrap_or_default(),
                });
        Ok(Response::new(v1::SetImageMappingsResponse {
            results: results.collect(),
        }))
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
        let disks = Arc::clone(&self.services.disks);
        let found = self
            .reader
            .read("manifests", LOOK, move || disks.manifest(vm))
            .await;
        let hangs =
            || Status::unavailable("the file system of the disks does not answer: try again");
        let found = found.ok_or_else(hangs)?;
        let found = found.map_err(|error| manifest_error(&error))?;
        let none = || Status::not_found(format!("no manifest lies beside disk {vm}"));
        let manifest = found.ok_or_else(none)?;
        Ok(Response::new(v1::GetManifestResponse {
            cluster_uid: manifest.cluster,
            manifest: manifest.text.into_bytes(),
        }))
    }
}

fn manifest_error(error: &disk::Error) -> Status {
    let text = crate::one_line(error);
    match error {
        disk::Error::Missing(_) => Status::not_found(text),
        disk::Error::Busy { .. } => Status::failed_precondition(text),
        _ => Status::internal(text),
    }
}

/// Every disk of the node, whether its record can be read or not.
fn listed(disks: &Disks) -> disk::Result<Vec<v1::Disk>> {
    // Before the records: a disk that is made meanwhile has one when it is looked for.
    let unreadable = disks.unreadable()?;
    let unreadable = unreadable.iter().map(|one| {
        let allocated = one.vm.map_or(0, |vm| disks.allocated(vm));
        wire::unreadable_disk(one, allocated)
    });
    let all = disks.all().into_iter();
    let all = all.map(|one| {
        let manifest = disks.manifest_summary(one.vm);
        let disk = wire::disk(&one, disks.allocated(one.vm), &disks.snapshots(&one));
        wire::with_manifest(disk, manifest)
    });
    Ok(all.chain(unreadable).collect())
}

impl From<wire::Invalid> for Status {
    fn from(error: wire::Invalid) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl From<Refused> for Status {
    fn from(error: Refused) -> Self {
        let text = crate::one_line(&error);
        match error {
            Refused::Other(_) => Self::invalid_argument(text),
            Refused::TooMany => Self::resource_exhausted(text),
            Refused::Unknown(_) => Self::not_found(text),
            Refused::NotEnded(_) => Self::failed_precondition(text),
            Refused::Db(_) => Self::internal(text),
        }
    }
}
