//! A CRI server that answers at once: a version, a list of a hundred entries and one of four
//! mebibytes.
//!
//! Invariant: answers are made when it starts; an entry looks like one of a real node.
//! Failure: exits when its socket cannot be made.

use std::path::PathBuf;

use anyhow::{Context, Result};
use cri_proto::v1::image_service_server::{ImageService, ImageServiceServer};
use cri_proto::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use e2e::v1;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Containers that the primary has.
const CONTAINERS: usize = 100;

/// Size of the primary's list of sandboxes.
const LARGE: usize = 4 << 20;

/// What to be.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Socket to make.
    #[arg(long)]
    listen: PathBuf,
    /// Own nothing, as a secondary without machines.
    #[arg(long)]
    empty: bool,
}

#[derive(Debug, Clone, Default)]
struct Fake {
    containers: v1::ListContainersResponse,
    sandboxes: v1::ListPodSandboxResponse,
}

impl Serve {
    /// Serves until it is killed.
    pub(crate) async fn run(self) -> Result<()> {
        let fake = if self.empty {
            Fake::default()
        } else {
            Fake::full()
        };
        let listener = UnixListener::bind(&self.listen)
            .with_context(|| format!("listen on {}", self.listen.display()))?;
        Server::builder()
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .add_service(
                RuntimeServiceServer::new(fake.clone())
                    .max_encoding_message_size(cri_proto::MAX_MESSAGE),
            )
            .add_service(ImageServiceServer::new(fake))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .context("serve")
    }
}

impl Fake {
    fn full() -> Self {
        let labels = |number: usize| {
            [
                ("io.kubernetes.pod.name".to_owned(), format!("pod-{number}")),
                (
                    "io.kubernetes.pod.namespace".to_owned(),
                    "default".to_owned(),
                ),
                ("io.kubernetes.pod.uid".to_owned(), format!("{number:036}")),
            ]
        };
        let container = |number: usize| v1::Container {
            id: format!("{number:064x}"),
            pod_sandbox_id: format!("{:064x}", number + CONTAINERS),
            image_ref: format!("sha256:{number:064x}"),
            state: v1::ContainerState::ContainerRunning.into(),
            labels: labels(number).into(),
            annotations: [(
                "io.kubernetes.container.hash".to_owned(),
                format!("{number:08x}"),
            )]
            .into(),
            ..Default::default()
        };
        let sandbox = |number: usize| v1::PodSandbox {
            id: format!("{number:064x}"),
            labels: labels(number).into(),
            annotations: [("example.org/long".to_owned(), "x".repeat(3 << 10))].into(),
            ..Default::default()
        };
        // An annotation of three kibibytes makes an entry of some 3.4.
        let entries = LARGE / 3400;
        Self {
            containers: v1::ListContainersResponse {
                containers: (0..CONTAINERS).map(container).collect(),
            },
            sandboxes: v1::ListPodSandboxResponse {
                items: (0..entries).map(sandbox).collect(),
            },
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(
        &self,
        _: Request<v1::VersionRequest>,
    ) -> Result<Response<v1::VersionResponse>, Status> {
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "fake".to_owned(),
            runtime_version: "1".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        Ok(Response::new(self.containers.clone()))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        Ok(Response::new(self.sandboxes.clone()))
    }
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        Ok(Response::new(v1::ListImagesResponse::default()))
    }
}
