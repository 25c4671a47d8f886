//! The runtime service: its table of contents.
//!
//! Invariant: one line per RPC; the work is in the module of its subject. Methods that are not here answer
//! `Unimplemented`.
//! Failure: statuses from [`status`](super::status).

use std::path::PathBuf;
use std::sync::Arc;

use cri_proto::v1;
use cri_proto::v1::runtime_service_server::RuntimeService;
use serde_json::Value;
use tonic::{Request, Response, Status};

mod container;
mod exec;
mod node;
mod resize;
mod sandbox;
mod stats;

use super::info;
use crate::app::App;
use crate::config::Config;
use crate::metadata::LookupError;

/// Answers runtime requests.
#[derive(Debug)]
pub(super) struct Runtime {
    app: App,
    cgroup_driver: v1::CgroupDriver,
    /// For verbose answers.
    paths: Value,
    /// Where root disks are.
    state_dir: PathBuf,
}

type Answer<T> = Result<Response<T>, Status>;

impl Runtime {
    pub(super) fn new(app: App, config: &Config) -> Self {
        Self {
            app,
            cgroup_driver: node::cgroup_driver(config.cri.cgroup_driver),
            paths: info::paths(config),
            state_dir: config.state_dir.to_path_buf(),
        }
    }
}

/// For requests that succeed when there is nothing to do: `None` when no object has the id.
fn if_known<T>(found: Result<Arc<T>, LookupError>) -> Result<Option<Arc<T>>, Status> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(LookupError::NotFound { .. }) => Ok(None),
        Err(ambiguous) => Err(ambiguous.into()),
    }
}

/// Implements methods by methods of the same name that take and return plain messages.
macro_rules! methods {
    ($( $method:ident($Request:ident) -> $Response:ident; )+) => {
        #[tonic::async_trait]
        impl RuntimeService for Runtime {
            $(
                async fn $method(&self, request: Request<v1::$Request>) -> Answer<v1::$Response> {
                    Runtime::$method(self, request.into_inner()).await.map(Response::new)
                }
            )+
        }
    };
}

methods! {
    version(VersionRequest) -> VersionResponse;
    status(StatusRequest) -> StatusResponse;
    runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
    update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse;

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
    exec_sync(ExecSyncRequest) -> ExecSyncResponse;
    exec(ExecRequest) -> ExecResponse;
    attach(AttachRequest) -> AttachResponse;
    port_forward(PortForwardRequest) -> PortForwardResponse;
}
