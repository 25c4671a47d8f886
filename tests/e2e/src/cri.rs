//! A CRI client with the calls that tests need in one line each.
//!
//! Invariant: requests look like kubelet's: metadata, labels, a log directory.
//! Failure: the daemon's gRPC status, untouched.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::stack::Stack;
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::v1::{self};
use crate::wait::eventually;

mod pod;

pub use pod::PodOptions;

/// Conditions without which kubelet starts no pod.
const NEEDED: [&str; 2] = ["RuntimeReady", "NetworkReady"];

/// A connection to the daemon.
#[derive(Debug, Clone)]
pub struct Cri {
    /// The runtime service.
    pub runtime: RuntimeServiceClient<Channel>,
    /// The image service.
    pub images: ImageServiceClient<Channel>,
}

impl Cri {
    /// Connects to a daemon's socket; waits a moment for it to listen.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let uri = format!("unix://{}", socket.display());
        let channel = eventually(Duration::from_secs(60), "connect to the daemon", || async {
            Ok(Endpoint::try_from(uri.clone())?.connect().await?)
        });
        let channel = channel.await.with_context(|| uri.clone())?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(cri_proto::MAX_MESSAGE),
            images: ImageServiceClient::new(channel)
                .max_decoding_message_size(cri_proto::MAX_MESSAGE),
        })
    }

    /// Waits until the daemon reports that it is ready.
    pub async fn await_ready(&self) -> Result<()> {
        let ready = || self.check_ready();
        eventually(Duration::from_secs(60), "a ready runtime", ready).await
    }

    /// An error unless the daemon reports that it is ready.
    pub async fn check_ready(&self) -> Result<()> {
        let mut runtime = self.runtime.clone();
        let answer = runtime.status(v1::StatusRequest::default()).await?;
        let status = answer.into_inner().status.context("status")?;
        let bad: Vec<_> = status
            .conditions
            .into_iter()
            // Others, such as HardwareVirtualization, are no reason to wait.
            .filter(|c| NEEDED.contains(&c.r#type.as_str()) && !c.status)
            .collect();
        ensure!(bad.is_empty(), "not ready: {bad:?}");
        Ok(())
    }

    /// Waits until the daemon is ready, and pulls the guest image of the stack; returns its name.
    pub async fn await_image(&self, stack: &Stack) -> Result<String> {
        self.await_ready().await?;
        let image = stack.image()?.to_owned();
        self.pull(&image).await?;
        Ok(image)
    }

    /// Pulls an image and returns its id.
    pub async fn pull(&self, image: &str) -> Result<String, Status> {
        self.pull_with(image, v1::AuthConfig::default()).await
    }

    /// Pulls an image with credentials and returns its id.
    pub async fn pull_with(&self, image: &str, auth: v1::AuthConfig) -> Result<String, Status> {
        let image = v1::ImageSpec {
            image: image.to_owned(),
            ..v1::ImageSpec::default()
        };
        let request = v1::PullImageRequest {
            image: Some(image),
            auth: Some(auth),
            ..Default::default()
        };
        let answer = self.images.clone().pull_image(request).await?;
        Ok(answer.into_inner().image_ref)
    }

    /// An image, if it is here.
    pub async fn image(&self, image: &str) -> Result<Option<v1::Image>, Status> {
        let image = v1::ImageSpec {
            image: image.to_owned(),
            ..v1::ImageSpec::default()
        };
        let request = v1::ImageStatusRequest {
            image: Some(image),
            verbose: false,
        };
        let answer = self.images.clone().image_status(request).await?;
        Ok(answer.into_inner().image)
    }

    /// Runs a sandbox and returns its id.
    pub async fn run(&self, config: v1::PodSandboxConfig) -> Result<String, Status> {
        self.run_by(config, "").await
    }

    /// Runs a sandbox of a handler and returns its id.
    pub async fn run_by(
        &self,
        config: v1::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, Status> {
        let request = v1::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.to_owned(),
        };
        Ok(self
            .runtime
            .clone()
            .run_pod_sandbox(request)
            .await?
            .into_inner()
            .pod_sandbox_id)
    }

    /// Creates a container and returns its id.
    pub async fn create(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, Status> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self
            .runtime
            .clone()
            .create_container(request)
            .await?
            .into_inner()
            .container_id)
    }

    /// Starts a container.
    pub async fn start(&self, id: &str) -> Result<(), Status> {
        let request = v1::StartContainerRequest {
            container_id: id.to_owned(),
        };
        self.runtime
            .clone()
            .start_container(request)
            .await
            .map(drop)
    }

    /// Changes resources of a container.
    pub async fn update(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<(), Status> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..v1::UpdateContainerResourcesRequest::default()
        };
        let mut runtime = self.runtime.clone();
        runtime.update_container_resources(request).await.map(drop)
    }

    /// Stops a container with this many seconds of grace.
    pub async fn stop(&self, id: &str, timeout: i64) -> Result<(), Status> {
        let request = v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout,
        };
        self.runtime.clone().stop_container(request).await.map(drop)
    }

    /// Removes a container.
    pub async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        self.runtime
            .clone()
            .remove_container(request)
            .await
            .map(drop)
    }

    /// Stops a sandbox.
    pub async fn stop_pod(&self, id: &str) -> Result<(), Status> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.runtime
            .clone()
            .stop_pod_sandbox(request)
            .await
            .map(drop)
    }

    /// Removes a sandbox.
    pub async fn remove_pod(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.runtime
            .clone()
            .remove_pod_sandbox(request)
            .await
            .map(drop)
    }

    /// The status of a container.
    pub async fn container(&self, id: &str) -> Result<v1::ContainerStatus, Status> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let answer = self
            .runtime
            .clone()
            .container_status(request)
            .await?
            .into_inner();
        answer.status.ok_or_else(|| Status::internal("no status"))
    }

    /// The status of a sandbox.
    pub async fn sandbox(&self, id: &str) -> Result<v1::PodSandboxStatus, Status> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let answer = self
            .runtime
            .clone()
            .pod_sandbox_status(request)
            .await?
            .into_inner();
        answer.status.ok_or_else(|| Status::internal("no status"))
    }

    /// The primary address of a sandbox.
    pub async fn ip(&self, id: &str) -> Result<String, Status> {
        let network = self.sandbox(id).await?.network;
        Ok(network.ok_or_else(|| Status::internal("no network"))?.ip)
    }

    /// All containers.
    pub async fn containers(&self) -> Result<Vec<v1::Container>, Status> {
        let request = v1::ListContainersRequest::default();
        Ok(self
            .runtime
            .clone()
            .list_containers(request)
            .await?
            .into_inner()
            .containers)
    }

    /// All sandboxes.
    pub async fn sandboxes(&self) -> Result<Vec<v1::PodSandbox>, Status> {
        let request = v1::ListPodSandboxRequest::default();
        Ok(self
            .runtime
            .clone()
            .list_pod_sandbox(request)
            .await?
            .into_inner()
            .items)
    }

    /// Removes an image by any of its names.
    pub async fn remove_image(&self, image: &str) -> Result<(), Status> {
        let image = v1::ImageSpec {
            image: image.to_owned(),
            ..v1::ImageSpec::default()
        };
        let request = v1::RemoveImageRequest { image: Some(image) };
        self.images.clone().remove_image(request).await.map(drop)
    }

    /// Ids of all images.
    pub async fn image_ids(&self) -> Result<Vec<String>, Status> {
        let request = v1::ListImagesRequest::default();
        let images = self
            .images
            .clone()
            .list_images(request)
            .await?
            .into_inner()
            .images;
        Ok(images.into_iter().map(|image| image.id).collect())
    }

    /// Runs, creates and starts a pod; returns the ids of sandbox and container.
    pub async fn boot(&self, pod: &PodOptions, image: &str) -> Result<(String, String)> {
        let sandbox = self.run(pod.sandbox()).await.context("RunPodSandbox")?;
        let created = Box::pin(self.create(&sandbox, pod.container(image, 0), pod.sandbox())).await;
        let container = created.context("CreateContainer")?;
        self.start(&container).await.context("StartContainer")?;
        Ok((sandbox, container))
    }

    /// Waits until a container has exited.
    pub async fn await_exit(&self, id: &str, within: Duration) -> Result<v1::ContainerStatus> {
        eventually(within, "the end of the container", || async {
            let status = self.container(id).await?;
            ensure!(
                status.state == v1::ContainerState::ContainerExited as i32,
                "{:?}",
                status.state
            );
            Ok(status)
        })
        .await
    }
}

/// Waits until a file holds a text and returns the file's contents.
pub async fn await_text(file: &Path, text: &str, within: Duration) -> Result<String> {
    eventually(
        within,
        &format!("{text:?} in {}", file.display()),
        || async {
            let bytes = std::fs::read(file)?;
            let contents = String::from_utf8_lossy(&bytes).into_owned();
            let end: String = contents
                .chars()
                .rev()
                .take(300)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect();
            ensure!(contents.contains(text), "it ends with {end:?}");
            Ok(contents)
        },
    )
    .await
}
