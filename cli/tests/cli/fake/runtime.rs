//! The fake's sandboxes and containers.
//!
//! Invariant: a container runs between its start and its end, and its log grows meanwhile.
//! Failure: a method that `vmletctl` does not use answers `Unimplemented`.

use std::path::Path;

use cri_proto::v1::runtime_service_server::RuntimeService;
use cri_proto::v1::{
    Container, ContainerState, ContainerStatus, ContainerStatusRequest, ContainerStatusResponse,
    CreateContainerRequest, CreateContainerResponse, ListContainersRequest, ListContainersResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxConfig,
    PodSandboxNetworkStatus, PodSandboxStatus, PodSandboxStatusRequest, PodSandboxStatusResponse,
    RemovePodSandboxRequest, RemovePodSandboxResponse, RunPodSandboxRequest, RunPodSandboxResponse,
    RuntimeCondition, RuntimeStatus, StartContainerRequest, StartContainerResponse, StatusRequest,
    StatusResponse, StopContainerRequest, StopContainerResponse, StopPodSandboxRequest,
    StopPodSandboxResponse, VersionRequest, VersionResponse,
};
use tonic::{Request, Response, Status};

use super::{Fake, Reply, Vm};

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(&self, _: Request<VersionRequest>) -> Reply<VersionResponse> {
        self.enter("Version")?;
        Ok(Response::new(VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "fake".into(),
            runtime_version: "1.2.3".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Reply<StatusResponse> {
        self.enter("Status")?;
        let condition = |name: &str| RuntimeCondition {
            r#type: name.into(),
            status: true,
            ..Default::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let info = r#"{"accelerator":{"choice":"tcg","reason":"a probe failed"},"qemu":"7.2",
            "pulls":[{"image":"vmlet.dev/big:1","receivedBytes":9,"totalBytes":20}]}"#;
        Ok(Response::new(StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            info: [("info".to_owned(), info.to_owned())].into(),
            ..Default::default()
        }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Reply<RunPodSandboxResponse> {
        self.enter("RunPodSandbox")?;
        let mut state = self.lock();
        state.made += 1;
        let id = format!(
            "{:056x}766d6c74",
            0xabcd_ef00_0000_0000_u64 + state.made as u64
        );
        state
            .sandboxes
            .insert(id.clone(), request.into_inner().config.unwrap());
        Ok(Response::new(RunPodSandboxResponse { pod_sandbox_id: id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Reply<StopPodSandboxResponse> {
        self.enter("StopPodSandbox")?;
        let id = request.into_inner().pod_sandbox_id;
        let vms: Vec<String> = {
            let state = self.lock();
            let own = state.containers.iter().filter(|(_, vm)| vm.sandbox == id);
            own.map(|(id, _)| id.clone()).collect()
        };
        vms.iter().for_each(|vm| self.end(vm, 137));
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Reply<RemovePodSandboxResponse> {
        self.enter("RemovePodSandbox")?;
        let id = request.into_inner().pod_sandbox_id;
        let mut state = self.lock();
        state.sandboxes.remove(&id);
        state.containers.retain(|_, vm| vm.sandbox != id);
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Reply<PodSandboxStatusResponse> {
        self.enter("PodSandboxStatus")?;
        let network = PodSandboxNetworkStatus {
            ip: "10.88.0.7".into(),
            ..Default::default()
        };
        let id = request.into_inner().pod_sandbox_id;
        let status = PodSandboxStatus {
            id,
            network: Some(network),
            ..Default::default()
        };
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(status),
            ..Default::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Reply<ListPodSandboxResponse> {
        self.enter("ListPodSandbox")?;
        let wanted = request
            .into_inner()
            .filter
            .unwrap_or_default()
            .label_selector;
        let matches = |config: &PodSandboxConfig| {
            wanted
                .iter()
                .all(|(key, value)| config.labels.get(key) == Some(value))
        };
        let item = |(id, config): (&String, &PodSandboxConfig)| PodSandbox {
            id: id.clone(),
            metadata: config.metadata.clone(),
            labels: config.labels.clone(),
            ..Default::default()
        };
        let state = self.lock();
        let items = state
            .sandboxes
            .iter()
            .filter(|(_, config)| matches(config))
            .map(item);
        Ok(Response::new(ListPodSandboxResponse {
            items: items.collect(),
        }))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Reply<CreateContainerResponse> {
        self.enter("CreateContainer")?;
        let request = request.into_inner();
        let config = request.config.unwrap();
        let log = Path::new(&request.sandbox_config.unwrap().log_directory).join(&config.log_path);
        let id = format!("{:056x}766d6c74", 0xc0_u64);
        let state = ContainerState::ContainerCreated;
        let sandbox = request.pod_sandbox_id;
        let vm = Vm {
            sandbox,
            config,
            log,
            state,
            exit_code: 0,
        };
        self.lock().containers.insert(id.clone(), vm);
        Ok(Response::new(CreateContainerResponse { container_id: id }))
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Reply<StartContainerResponse> {
        self.enter("StartContainer")?;
        let id = request.into_inner().container_id;
        {
            let mut state = self.lock();
            let vm = state.containers.get_mut(&id).unwrap();
            vm.state = ContainerState::ContainerRunning;
            Self::write_console(vm, "guest: hello");
        }
        if let Some(code) = self.scenario.ends_with {
            self.end(&id, code);
        }
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Reply<StopContainerResponse> {
        let StopContainerRequest {
            container_id,
            timeout,
        } = request.into_inner();
        self.record(format!("StopContainer {timeout}"));
        if timeout > 0 && self.scenario.stubborn {
            return std::future::pending().await;
        }
        self.end(&container_id, if timeout > 0 { 0 } else { 137 });
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Reply<ListContainersResponse> {
        self.enter("ListContainers")?;
        let item = |(id, vm): (&String, &Vm)| Container {
            id: id.clone(),
            pod_sandbox_id: vm.sandbox.clone(),
            state: vm.state.into(),
            image: vm.config.image.clone(),
            annotations: vm.config.annotations.clone(),
            ..Default::default()
        };
        let containers = self.lock().containers.iter().map(item).collect();
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Reply<ContainerStatusResponse> {
        self.enter("ContainerStatus")?;
        let id = request.into_inner().container_id;
        let state = self.lock();
        let vm = state
            .containers
            .get(&id)
            .ok_or_else(|| Status::not_found("no such container"))?;
        let status = ContainerStatus {
            id,
            state: vm.state.into(),
            exit_code: vm.exit_code,
            reason: if vm.exit_code == 0 {
                "Completed"
            } else {
                "Error"
            }
            .into(),
            log_path: vm.log.to_str().unwrap().into(),
            ..Default::default()
        };
        let socket = self
            .scenario
            .console
            .as_ref()
            .map(|path| path.to_str().unwrap());
        let info = socket.map(|s| format!(r#"{{"vm": {{"consoleSocket": "{s}"}}}}"#));
        let info = info
            .map(|info| ("info".to_owned(), info))
            .into_iter()
            .collect();
        Ok(Response::new(ContainerStatusResponse {
            status: Some(status),
            info,
        }))
    }
}
