//! The daemon as the commands see it: one method per request, each with its deadline.
//!
//! Invariant: every request has a timeout, except a pull, which the daemon itself bounds.
//! Failure: [`CallError`] names the CRI method and gives the daemon's message and code.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use cri_proto::MAX_MESSAGE;
use cri_proto::v1::image_service_client::ImageServiceClient;
use cri_proto::v1::runtime_service_client::RuntimeServiceClient;
use cri_proto::v1::{
    Container, ContainerFilter, ContainerStatusRequest, ContainerStatusResponse,
    CreateContainerRequest, FilesystemUsage, Image, ImageFsInfoRequest, ImageSpec,
    ImageStatusRequest, ImageStatusResponse, ListContainersRequest, ListImagesRequest,
    ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxStatus,
    PodSandboxStatusRequest, PullImageRequest, RemovePodSandboxRequest, RunPodSandboxRequest,
    StartContainerRequest, StatusRequest, StatusResponse, StopContainerRequest,
    StopPodSandboxRequest, VersionRequest, VersionResponse,
};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::table::printable;

/// For questions, which are answered from memory.
pub(crate) const QUERY: Duration = Duration::from_secs(10);
/// For work, as kubelet allows it.
const WORK: Duration = Duration::from_secs(120);

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{method}: {} ({:?})", printable(.status.message()), .status.code())]
    Refused {
        method: &'static str,
        status: Box<Status>,
    },
    #[error("{method}: no answer within {} s", .after.as_secs())]
    Late {
        method: &'static str,
        after: Duration,
    },
    #[error("{method}: the answer lacks {what}")]
    Incomplete {
        method: &'static str,
        what: &'static str,
    },
}

impl CallError {
    /// Whether the daemon could not be reached, which a restart of it explains.
    pub(crate) fn is_unavailable(&self) -> bool {
        match self {
            // A status that the daemon sent has no source; one that is made for a broken connection
            // has.
            Self::Refused { status, .. } => {
                status.code() == Code::Unavailable || std::error::Error::source(status).is_some()
            }
            Self::Late { .. } => true,
            Self::Incomplete { .. } => false,
        }
    }
}

type Result<T, E = CallError> = std::result::Result<T, E>;

/// A connection to the daemon. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl Runtime {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        }
    }

    pub(crate) async fn version(&self, limit: Duration) -> Result<VersionResponse> {
        let request = VersionRequest {
            version: "v1".into(),
        };
        within(
            "Version",
            limit,
            Box::pin(self.runtime.clone().version(request)),
        )
        .await
    }

    /// Conditions, and facts for operators in `info`.
    pub(crate) async fn status(&self) -> Result<StatusResponse> {
        let request = StatusRequest { verbose: true };
        within(
            "Status",
            QUERY,
            Box::pin(self.runtime.clone().status(request)),
        )
        .await
    }

    /// Makes a sandbox and returns its id.
    pub(crate) async fn run_sandbox(
        &self,
        config: PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<String> {
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler,
        };
        let answer = within(
            "RunPodSandbox",
            2 * WORK,
            Box::pin(self.runtime.clone().run_pod_sandbox(request)),
        )
        .await?;
        Ok(answer.pod_sandbox_id)
    }

    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        within(
            "StopPodSandbox",
            WORK,
            Box::pin(self.runtime.clone().stop_pod_sandbox(request)),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        within(
            "RemovePodSandbox",
            WORK,
            Box::pin(self.runtime.clone().remove_pod_sandbox(request)),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        let method = "PodSandboxStatus";
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let answer = within(
            method,
            QUERY,
            Box::pin(self.runtime.clone().pod_sandbox_status(request)),
        )
        .await?;
        answer.status.ok_or(CallError::Incomplete {
            method,
            what: "status",
        })
    }

    /// Sandboxes of all states that carry all of the labels.
    pub(crate) async fn sandboxes(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<PodSandbox>> {
        let filter = PodSandboxFilter {
            label_selector,
            ..Default::default()
        };
        let request = ListPodSandboxRequest {
            filter: Some(filter),
        };
        let answer = within(
            "ListPodSandbox",
            QUERY,
            Box::pin(self.runtime.clone().list_pod_sandbox(request)),
        )
        .await?;
        Ok(answer.items)
    }

    pub(crate) async fn containers(&self) -> Result<Vec<Container>> {
        let request = ListContainersRequest {
            filter: Some(ContainerFilter::default()),
        };
        let answer = within(
            "ListContainers",
            QUERY,
            Box::pin(self.runtime.clone().list_containers(request)),
        )
        .await?;
        Ok(answer.containers)
    }

    /// Makes a container and returns its id.
    pub(crate) async fn create_container(&self, request: CreateContainerRequest) -> Result<String> {
        let answer = within(
            "CreateContainer",
            WORK,
            Box::pin(self.runtime.clone().create_container(request)),
        )
        .await?;
        Ok(answer.container_id)
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<()> {
        let request = StartContainerRequest {
            container_id: id.to_owned(),
        };
        within(
            "StartContainer",
            WORK,
            Box::pin(self.runtime.clone().start_container(request)),
        )
        .await?;
        Ok(())
    }

    /// Requests the guest to go down and kills it after `grace` seconds; 0 kills at once.
    pub(crate) async fn stop_container(&self, id: &str, grace: u32) -> Result<()> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::from(grace),
        };
        let limit = WORK + Duration::from_secs(u64::from(grace));
        within(
            "StopContainer",
            limit,
            Box::pin(self.runtime.clone().stop_container(request)),
        )
        .await?;
        Ok(())
    }

    pub(crate) async fn container_status(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose,
        };
        within(
            "ContainerStatus",
            QUERY,
            Box::pin(self.runtime.clone().container_status(request)),
        )
        .await
    }

    /// The images of the store.
    pub(crate) async fn images(&self) -> Result<Vec<Image>> {
        let request = ListImagesRequest::default();
        let answer = within(
            "ListImages",
            QUERY,
            Box::pin(self.images.clone().list_images(request)),
        )
        .await?;
        Ok(answer.images)
    }

    /// Without an image in the answer, the image is absent.
    pub(crate) async fn image_status(
        &self,
        image: ImageSpec,
        verbose: bool,
    ) -> Result<ImageStatusResponse> {
        let request = ImageStatusRequest {
            image: Some(image),
            verbose,
        };
        within(
            "ImageStatus",
            QUERY,
            Box::pin(self.images.clone().image_status(request)),
        )
        .await
    }

    /// Pulls an image and returns its id. Ends when the daemon does; dropping it cancels the pull.
    pub(crate) async fn pull_image(
        &self,
        image: ImageSpec,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String> {
        let request = PullImageRequest {
            image: Some(image),
            auth: None,
            sandbox_config: Some(sandbox_config),
        };
        match Box::pin(self.images.clone().pull_image(request)).await {
            Ok(response) => Ok(response.into_inner().image_ref),
            Err(status) => Err(refused("PullImage", status)),
        }
    }

    /// Where images are kept.
    pub(crate) async fn image_filesystem(&self) -> Result<FilesystemUsage> {
        let method = "ImageFsInfo";
        let answer = within(
            method,
            QUERY,
            Box::pin(self.images.clone().image_fs_info(ImageFsInfoRequest {})),
        )
        .await?;
        let first = answer.image_filesystems.into_iter().next();
        first.ok_or(CallError::Incomplete {
            method,
            what: "file systems",
        })
    }
}

/// The call comes boxed, since generated futures are large.
async fn within<T>(
    method: &'static str,
    after: Duration,
    call: Pin<Box<impl Future<Output = Result<Response<T>, Status>>>>,
) -> Result<T> {
    match timeout(after, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(refused(method, status)),
        Err(_) => Err(CallError::Late { method, after }),
    }
}

fn refused(method: &'static str, status: Status) -> CallError {
    CallError::Refused {
        method,
        status: Box::new(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_method_the_message_and_the_code() {
        let error = refused("StartContainer", Status::failed_precondition("no disk"));
        assert_eq!(
            error.to_string(),
            "StartContainer: no disk (FailedPrecondition)"
        );
        let error = CallError::Late {
            method: "Status",
            after: QUERY,
        };
        assert_eq!(error.to_string(), "Status: no answer within 10 s");
    }

    #[test]
    fn only_an_unreachable_daemon_is_worth_waiting_for() {
        assert!(refused("X", Status::unavailable("")).is_unavailable());
        assert!(
            CallError::Late {
                method: "X",
                after: WORK
            }
            .is_unavailable()
        );
        assert!(!refused("X", Status::not_found("")).is_unavailable());
    }
}
