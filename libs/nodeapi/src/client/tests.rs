//! The client against a server of its own on a socket, and against sockets without a listener.
//!
//! Invariant: every server ends with its test.
//! Failure: a test that waits longer than its deadlines fails by its own limit.

use std::time::Instant;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tonic::codegen::BoxFuture;
use tonic::codegen::tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};

use super::*;
use crate::v1::node_server::{Node, NodeServer};
use crate::v1::{
    CancelTaskRequest, ExportBackupRequest, ExportDiskRequest, ExportEvent, ExportSnapshotRequest,
    ForgetExportRequest, ForgetExportResponse, ForgetTaskRequest, ForgetTaskResponse,
    GetManifestRequest, GetManifestResponse, InfoRequest, InfoResponse, ListDisksRequest,
    ListDisksResponse, MachineEvent, ProvideSourceRequest, ProvideSourceResponse, PullEvent,
    RunTaskRequest, SetImageMappingsRequest, SetImageMappingsResponse, SetManifestRequest,
    SetManifestResponse, SetNodeSettingsRequest, SetNodeSettingsResponse, SourceEvent, TaskEvent,
    TaskStatus, UploadEvent, UploadRequest, WatchMachinesRequest, WatchPullsRequest,
    WatchSourcesRequest, WatchTasksRequest,
};

/// For calls that are answered, however slow the machine is.
const PATIENT: Deadlines = Deadlines {
    connect: LONG,
    call: LONG,
    silence: LONG,
};
/// For calls that are not.
const QUICK: Deadlines = Deadlines {
    connect: Duration::from_millis(500),
    call: Duration::from_millis(500),
    silence: LONG,
};
const LONG: Duration = Duration::from_secs(60);

/// Answers `Info`, and watches tasks without a message.
struct Silent;

#[tonic::async_trait]
impl Node for Silent {
    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Ok(Response::new(InfoResponse {
            version: "1.2.3".to_owned(),
            ..InfoResponse::default()
        }))
    }

    async fn run_task(&self, _: Request<RunTaskRequest>) -> Result<Response<TaskStatus>, Status> {
        std::future::pending().await
    }

    type WatchTasksStream = ReceiverStream<Result<TaskEvent, Status>>;

    async fn watch_tasks(
        &self,
        _: Request<WatchTasksRequest>,
    ) -> Result<Response<Self::WatchTasksStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        // Held open by a task that ends with the runtime of the test.
        tokio::spawn(async move { sender.closed().await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn cancel_task(
        &self,
        _: Request<CancelTaskRequest>,
    ) -> Result<Response<TaskStatus>, Status> {
        Err(Status::not_found("no such task"))
    }

    async fn forget_task(
        &self,
        _: Request<ForgetTaskRequest>,
    ) -> Result<Response<ForgetTaskResponse>, Status> {
        Ok(Response::new(ForgetTaskResponse {}))
    }

    async fn list_disks(
        &self,
        _: Request<ListDisksRequest>,
    ) -> Result<Response<ListDisksResponse>, Status> {
        Ok(Response::new(ListDisksResponse { disks: Vec::new() }))
    }

    type WatchMachinesStream = ReceiverStream<Result<MachineEvent, Status>>;

    async fn watch_machines(
        &self,
        _: Request<WatchMachinesRequest>,
    ) -> Result<Response<Self::WatchMachinesStream>, Status> {
        Ok(Response::new(ReceiverStream::new(mpsc::channel(1).1)))
    }

    type WatchSourcesStream = ReceiverStream<Result<SourceEvent, Status>>;

    async fn watch_sources(
        &self,
        _: Request<WatchSourcesRequest>,
    ) -> Result<Response<Self::WatchSourcesStream>, Status> {
        Ok(Response::new(ReceiverStream::new(mpsc::channel(1).1)))
    }

    async fn provide_source(
        &self,
        _: Request<ProvideSourceRequest>,
    ) -> Result<Response<ProvideSourceResponse>, Status> {
        Ok(Response::new(ProvideSourceResponse {}))
    }

    type WatchPullsStream = ReceiverStream<Result<PullEvent, Status>>;

    async fn watch_pulls(
        &self,
        _: Request<WatchPullsRequest>,
    ) -> Result<Response<Self::WatchPullsStream>, Status> {
        Ok(Response::new(ReceiverStream::new(mpsc::channel(1).1)))
    }

    async fn set_image_mappings(
        &self,
        _: Request<SetImageMappingsRequest>,
    ) -> Result<Response<SetImageMappingsResponse>, Status> {
        Ok(Response::new(SetImageMappingsResponse::default()))
    }

    async fn set_node_settings(
        &self,
        _: Request<SetNodeSettingsRequest>,
    ) -> Result<Response<SetNodeSettingsResponse>, Status> {
        Ok(Response::new(SetNodeSettingsResponse::default()))
    }

    type ExportDiskStream = ReceiverStream<Result<ExportEvent, Status>>;

    async fn export_disk(
        &self,
        _: Request<ExportDiskRequest>,
    ) -> Result<Response<Self::ExportDiskStream>, Status> {
        Err(Status::unimplemented("no disk has a file here"))
    }

    type ExportSnapshotStream = ReceiverStream<Result<ExportEvent, Status>>;

    async fn export_snapshot(
        &self,
        _: Request<ExportSnapshotRequest>,
    ) -> Result<Response<Self::ExportSnapshotStream>, Status> {
        Err(Status::unimplemented("no snapshot has a file here"))
    }

    type ExportBackupStream = ReceiverStream<Result<ExportEvent, Status>>;

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

    type UploadImageStream = ReceiverStream<Result<UploadEvent, Status>>;

    async fn upload_image(
        &self,
        _: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<Self::UploadImageStream>, Status> {
        Err(Status::unimplemented("no image has a file here"))
    }

    async fn set_manifest(
        &self,
        _: Request<SetManifestRequest>,
    ) -> Result<Response<SetManifestResponse>, Status> {
        Err(Status::not_found("no disk is here"))
    }

    async fn get_manifest(
        &self,
        _: Request<GetManifestRequest>,
    ) -> Result<Response<GetManifestResponse>, Status> {
        Err(Status::not_found("no disk is here"))
    }
}

fn serve(path: &Path) -> BoxFuture<(), tonic::transport::Error> {
    let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let server = tonic::transport::Server::builder().add_service(NodeServer::new(Silent));
    Box::pin(server.serve_with_incoming(listener))
}

#[test]
fn an_endpoint_is_an_absolute_path_with_or_without_scheme() {
    for text in ["unix:///run/n.sock", "unix:/run/n.sock", "/run/n.sock"] {
        assert_eq!(socket_path(text).unwrap(), Path::new("/run/n.sock"));
    }
    for text in ["", "n.sock", "unix://n.sock", "http://localhost"] {
        assert!(
            matches!(socket_path(text), Err(Error::Endpoint(_))),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_client_finds_the_daemon_again_after_it_was_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let mut client = connect(path.to_str().unwrap(), PATIENT).unwrap();
    let away = client.info(InfoRequest {}).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away}");

    let server = tokio::spawn(serve(&path));
    let info = client.info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.version, "1.2.3");

    server.abort();
    let _ = server.await;
    std::fs::remove_file(&path).unwrap();
    let _server = tokio::spawn(serve(&path));
    let mut attempts = 0;
    while client.info(InfoRequest {}).await.is_err() {
        attempts += 1;
        assert!(attempts < 5, "the old connection is still used");
    }
}

#[tokio::test]
async fn a_call_without_answer_ends_at_its_deadline_but_a_quiet_stream_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let _server = tokio::spawn(serve(&path));
    let deadlines = Deadlines {
        connect: LONG,
        ..QUICK
    };
    let mut client = connect(path.to_str().unwrap(), deadlines).unwrap();
    let started = Instant::now();
    let late = client
        .run_task(RunTaskRequest::default())
        .await
        .unwrap_err();
    assert!(started.elapsed() < LONG);
    assert!(
        matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded),
        "{late}"
    );

    let open = async {
        loop {
            // A stream that comes late is requested again.
            if let Ok(stream) = client.watch_tasks(WatchTasksRequest {}).await {
                return stream.into_inner();
            }
        }
    };
    let mut stream = tokio::time::timeout(LONG, open).await.unwrap();
    let quiet = tokio::time::timeout(QUICK.call * 3, stream.message()).await;
    assert!(quiet.is_err(), "the stream ended: {quiet:?}");
}

#[tokio::test]
async fn a_peer_that_accepts_and_never_replies_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let held: tokio::task::JoinHandle<()> = tokio::spawn(async move {
        let mut held: Vec<UnixStream> = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let mut client = connect(path.to_str().unwrap(), QUICK).unwrap();
    let started = Instant::now();
    client.info(InfoRequest {}).await.unwrap_err();
    assert!(started.elapsed() < LONG);
    held.abort();
}
