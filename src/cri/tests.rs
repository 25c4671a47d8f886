//! Tests of the server over a real socket, with services that need no node.
//!
//! Invariant: every wait has a deadline.
//! Failure: a failing test names what the server did instead.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cri_proto::v1;
use cri_proto::v1::runtime_service_client::RuntimeServiceClient;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::*;
use crate::metrics::Metrics;

mod images;
mod methods;
mod settings;
mod traces;

const DEADLINE: Duration = Duration::from_secs(90);

/// Answers `Version`, and never answers `StopContainer`.
#[derive(Debug)]
struct FakeRuntime {
    /// A permit for each stop that has arrived.
    stopping: Arc<Semaphore>,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self {
            stopping: Arc::new(Semaphore::new(0)),
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(
        &self,
        _: Request<v1::VersionRequest>,
    ) -> Result<Response<v1::VersionResponse>, Status> {
        Ok(Response::new(v1::VersionResponse::default()))
    }

    async fn stop_container(
        &self,
        _: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        self.stopping.add_permits(1);
        std::future::pending().await
    }
}

struct NoImages;

impl ImageService for NoImages {}

struct Server {
    _dir: tempfile::TempDir,
    path: PathBuf,
    stopping: Arc<Semaphore>,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), Error>>,
}

impl Server {
    async fn start(grace: Duration) -> Self {
        let simple = FakeRuntime::default();
        let stopping = Arc::clone(&simple.stopping);
        Self {
            stopping,
            ..Self::serving(simple, NoImages, grace).await
        }
    }

    async fn serving(
        runtime: impl RuntimeService,
        images: impl ImageService,
        grace: Duration,
    ) -> Self {
        Self::counted(runtime, images, grace, Arc::default()).await
    }

    async fn counted(
        runtime: impl RuntimeService,
        images: impl ImageService,
        grace: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self::observed(runtime, images, grace, Calls::new(metrics, None)).await
    }

    async fn observed(
        runtime: impl RuntimeService,
        images: impl ImageService,
        grace: Duration,
        calls: Calls,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vmlet.sock");
        let listener = Listener::bind(&path).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let serving = serve_services(listener, runtime, images, calls, stopped, grace);
        let ended = tokio::spawn(serving);
        Self {
            _dir: dir,
            path,
            stopping: Arc::new(Semaphore::new(0)),
            stop: Some(stop),
            ended,
        }
    }

    async fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(connect(&self.path).await)
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        let ended = tokio::time::timeout(DEADLINE, self.ended).await;
        ended.unwrap().unwrap().unwrap();
        assert!(!self.path.exists());
    }
}

async fn connect(path: &Path) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.unwrap()
}

#[tokio::test]
async fn an_idle_client_does_not_delay_the_end() {
    let server = Server::start(Duration::from_secs(3600)).await;
    let mut client = server.client().await;
    client.version(v1::VersionRequest::default()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_is_abandoned_after_the_grace_period() {
    let server = Server::start(Duration::from_millis(50)).await;
    let mut client = server.client().await;
    let stuck = tokio::spawn(async move {
        let request = v1::StopContainerRequest::default();
        client.stop_container(request).await
    });
    drop(server.stopping.acquire().await.unwrap());
    server.stop().await;
    stuck.abort();
}

#[tokio::test]
async fn three_hundred_stops_on_a_connection_delay_no_other_request_on_it() {
    let server = Server::start(Duration::from_millis(50)).await;
    let mut client = server.client().await;
    let mut stops = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let mut client = client.clone();
        stops.spawn(async move {
            let request = v1::StopContainerRequest::default();
            client.stop_container(request).await
        });
    }
    let others = async {
        drop(server.stopping.acquire_many(300).await.unwrap());
        client.version(v1::VersionRequest::default()).await.unwrap();
    };
    tokio::time::timeout(DEADLINE, others)
        .await
        .expect("no wait for stops");
    stops.abort_all();
    server.stop().await;
}

#[tokio::test]
async fn malformed_bytes_never_end_the_server() {
    let server = Server::start(DEADLINE).await;
    let mut runner = TestRunner::deterministic();
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    for round in 0..200 {
        let mut stream = UnixStream::connect(&server.path).await.unwrap();
        let bytes = noise.new_tree(&mut runner).unwrap().current();
        // Half of them get past the connection preface.
        let preface: &[u8] = if round % 2 == 0 {
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        } else {
            b""
        };
        // The server may close at any byte.
        let _ = stream.write_all(&[preface, &bytes].concat()).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(DEADLINE, closed).await.unwrap();
    }
    let mut client = server.client().await;
    client.version(v1::VersionRequest::default()).await.unwrap();
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn messages_of_eight_mebibytes_pass() {
    let server = Server::start(DEADLINE).await;
    let mut client = server.client().await;
    let version = "x".repeat(8 << 20);
    client
        .version(v1::VersionRequest { version })
        .await
        .unwrap();
    let version = "x".repeat(MAX_MESSAGE + 1);
    let refused = client.version(v1::VersionRequest { version }).await;
    assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
    drop(client);
    server.stop().await;
}
