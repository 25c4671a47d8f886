//! The runtime service: delegates each method to a submodule.
//!
//! Invariant: one line per RPC; the work is in the module of its subject. A method that a machine
//! cannot have answers `Unimplemented` with its name and what serves instead. Requests about sandboxes
//! and containers are answered on any platform, so that tests send them to one that keeps state only.
//! Failure: statuses from [`status`](super::status).

use std::path::PathBuf;
use std::sync::Arc;

use cri_proto::v1;
use cri_proto::v1::runtime_service_server::RuntimeService;
use serde_json::Value;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

mod container;
mod events;
mod exec;
mod forward;
mod metrics;
mod node;
mod resize;
mod sandbox;
mod stats;

use super::{info, streams};
use crate::app::{App, Real};
use crate::config::Config;
use crate::images::Images;
use crate::metadata::LookupError;
use crate::platform::Platform;
use crate::streaming::Gate;
use crate::{pods, vm};

/// Answers runtime requests.
#[derive(Debug)]
pub(super) struct Runtime {
    app: App,
    cgroup_driver: v1::CgroupDriver,
    /// For verbose answers.
    paths: Value,
    pods: Pods<Real>,
}

/// Answers requests about sandboxes and containers.
#[derive(Debug)]
struct Pods<P: Platform> {
    sandboxes: Arc<pods::Sandboxes<P>>,
    containers: Arc<vm::Containers<P>>,
    images: Arc<Images>,
    /// Where root disks are.
    state_dir: PathBuf,
    /// Issues URLs of streaming sessions.
    gate: Arc<Gate>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Runtime {
    pub(super) fn new(app: App, config: &Config, gate: Arc<Gate>) -> Self {
        let pods = Pods {
            sandboxes: Arc::clone(&app.sandboxes),
            containers: Arc::clone(&app.containers),
            images: Arc::clone(&app.images),
            state_dir: config.state_dir.to_path_buf(),
            gate,
        };
        Self {
            app,
            cgroup_driver: node::cgroup_driver(config.cri.cgroup_driver, &config.shares.host_root),
            paths: info::paths(config),
            pods,
        }
    }
}

/// The object of a request that succeeds when there is nothing to do: `None` when no object has the id.
fn if_known<T>(found: Result<Arc<T>, LookupError>) -> Result<Option<Arc<T>>, Status> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(LookupError::NotFound { .. }) => Ok(None),
        Err(ambiguous) => Err(ambiguous.into()),
    }
}

/// Implements methods by methods of the same name that take and return plain messages: those of
/// `of_pods`, and the streams of lists, by methods of [`Pods`].
macro_rules! methods {
    (
        served { $( $method:ident($Request:ident) -> $Response:ident; )+ }
        of_pods { $( $of_pods:ident($OfPods:ident) -> $Answered:ident; )+ }
        followed { $( $follow:ident($Start:ident) -> $Item:ident; )+ }
        streamed {
            $( $stream:ident($Filter:ident) -> $Batch:ident { $field:ident: $list:ident($List:ident).$items:ident } )+
        }
        streamed_whole {
            $( $whole:ident($Whole:ident) -> $Part:ident { $parts:ident: $all:ident($All:ident).$found:ident } )+
        }
        refused { $( $refused:ident($Refused:ident) -> $Never:ty, $words:literal; )+ }
    ) => {
        #[tonic::async_trait]
        impl RuntimeService for Runtime {
            $(
                async fn $method(&self, request: Request<v1::$Request>) -> Answer<v1::$Response> {
                    Runtime::$method(self, request.into_inner()).await.map(Response::new)
                }
            )+
            $(
                async fn $of_pods(&self, request: Request<v1::$OfPods>) -> Answer<v1::$Answered> {
                    self.pods.$of_pods(request.into_inner()).await.map(Response::new)
                }
            )+
            $(
                async fn $follow(
                    &self,
                    request: Request<v1::$Start>,
                ) -> Answer<BoxStream<v1::$Item>> {
                    Ok(Response::new(Runtime::$follow(self, request.into_inner())))
                }
            )+
            $(
                async fn $stream(
                    &self,
                    request: Request<v1::$Filter>,
                ) -> Answer<BoxStream<v1::$Batch>> {
                    let filter = request.into_inner().filter;
                    let list = self.pods.$list(v1::$List { filter }).await?;
                    let batches = streams::batches(list.$items, |$field| v1::$Batch { $field });
                    Ok(Response::new(batches))
                }
            )+
            $(
                async fn $whole(&self, _: Request<v1::$Whole>) -> Answer<BoxStream<v1::$Part>> {
                    let list = self.pods.$all(v1::$All {}).await?;
                    let batches = streams::batches(list.$found, |$parts| v1::$Part { $parts });
                    Ok(Response::new(batches))
                }
            )+
            $(
                async fn $refused(&self, _: Request<v1::$Refused>) -> Answer<$Never> {
                    Err(Status::unimplemented($words))
                }
            )+
        }
    };
}

methods! {
    served {
        version(VersionRequest) -> VersionResponse;
        status(StatusRequest) -> StatusResponse;
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
        update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse;
    }

    of_pods {
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
        stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse;
        remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse;
        pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse;
        list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse;

        create_container(CreateContainerRequest) -> CreateContainerResponse;
        start_container(StartContainerRequest) -> StartContainerResponse;
        stop_container(StopContainerRequest) -> StopContainerResponse;
        remove_container(RemoveContainerRequest) -> RemoveContainerResponse;
        container_status(ContainerStatusRequest) -> ContainerStatusResponse;
        list_containers(ListContainersRequest) -> ListContainersResponse;
        reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse;

        update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse;
        update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse;

        container_stats(ContainerStatsRequest) -> ContainerStatsResponse;
        list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse;
        pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse;
        list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse;
        list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse;
        list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse;
        exec_sync(ExecSyncRequest) -> ExecSyncResponse;
        exec(ExecRequest) -> ExecResponse;
        attach(AttachRequest) -> AttachResponse;
        port_forward(PortForwardRequest) -> PortForwardResponse;
    }

    followed {
        get_container_events(GetEventsRequest) -> ContainerEventResponse;
    }

    streamed {
        stream_pod_sandboxes(StreamPodSandboxesRequest) -> StreamPodSandboxesResponse {
            pod_sandboxes: list_pod_sandbox(ListPodSandboxRequest).items
        }
        stream_containers(StreamContainersRequest) -> StreamContainersResponse {
            containers: list_containers(ListContainersRequest).containers
        }
        stream_container_stats(StreamContainerStatsRequest) -> StreamContainerStatsResponse {
            container_stats: list_container_stats(ListContainerStatsRequest).stats
        }
        stream_pod_sandbox_stats(StreamPodSandboxStatsRequest) -> StreamPodSandboxStatsResponse {
            pod_sandbox_stats: list_pod_sandbox_stats(ListPodSandboxStatsRequest).stats
        }
    }

    streamed_whole {
        stream_pod_sandbox_metrics(StreamPodSandboxMetricsRequest) -> StreamPodSandboxMetricsResponse {
            pod_sandbox_metrics: list_pod_sandbox_metrics(ListPodSandboxMetricsRequest).pod_metrics
        }
    }

    refused {
        checkpoint_container(CheckpointContainerRequest) -> v1::CheckpointContainerResponse,
            "CheckpointContainer: checkpoints of virtual machines are not available: suspend a VirtualMachine to save its \
             memory";
    }
}

#[cfg(test)]
mod tests;
