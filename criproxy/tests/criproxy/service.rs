//! The CRI of the runtime in memory.
//!
//! Invariant: stop and remove of something unknown succeed, everything else about it is `NotFound`.
//! Failure: as [`crate::fake::Mood`] specifies.

use cri_proto::v1;
use cri_proto::v1::runtime_service_server::RuntimeService;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status};

use crate::fake::Inner;

mod images;

type Answer<T> = Result<Response<T>, Status>;
type Items<T> = tonic::codegen::BoxStream<T>;

fn pick<T: Clone>(all: &std::collections::BTreeMap<String, T>, id: &str) -> Result<T, Status> {
    let mut found = all.iter().filter(|(key, _)| key.starts_with(id));
    match (found.next(), found.next()) {
        (Some((_, one)), None) if !id.is_empty() => Ok(one.clone()),
        (Some(_), Some(_)) => Err(Status::invalid_argument("ambiguous")),
        _ => Err(Status::not_found(format!("no {id:?} here"))),
    }
}

#[tonic::async_trait]
impl RuntimeService for Inner {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        self.enter("Version").await?;
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: self.name.clone(),
            runtime_version: "1".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        self.enter("Status").await?;
        let condition = |kind: &str| v1::RuntimeCondition {
            r#type: kind.into(),
            status: true,
            ..Default::default()
        };
        let handlers = self.state.lock().unwrap().handlers.clone();
        let handlers = handlers.into_iter().map(|name| v1::RuntimeHandler {
            name,
            features: None,
        });
        let mut info = std::collections::BTreeMap::new();
        if request.into_inner().verbose {
            info.insert("config".to_owned(), self.name.clone());
        }
        Ok(Response::new(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: ["RuntimeReady", "NetworkReady"].map(condition).into(),
            }),
            info,
            runtime_handlers: handlers.collect(),
            features: None,
        }))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        self.enter("RuntimeConfig").await?;
        let linux = Some(v1::LinuxRuntimeConfiguration::default());
        Ok(Response::new(v1::RuntimeConfigResponse { linux }))
    }

    async fn update_runtime_config(
        &self,
        _: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        self.enter("UpdateRuntimeConfig").await?;
        Ok(Response::new(Default::default()))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        self.enter("RunPodSandbox").await?;
        let request = request.into_inner();
        let config = request.config.clone().unwrap_or_default();
        let id = self.new_id();
        let sandbox = v1::PodSandbox {
            id: id.clone(),
            metadata: config.metadata,
            created_at: 1,
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: request.runtime_handler.clone(),
            ..Default::default()
        };
        let mut state = self.state.lock().unwrap();
        state.runs.push(request);
        state.sandboxes.insert(id.clone(), sandbox);
        let pod_sandbox_id = id;
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id }))
    }

    async fn stop_pod_sandbox(
        &self,
        _: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        self.enter("StopPodSandbox").await?;
        Ok(Response::new(Default::default()))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        self.enter("RemovePodSandbox").await?;
        let id = request.into_inner().pod_sandbox_id;
        self.state.lock().unwrap().sandboxes.remove(&id);
        Ok(Response::new(Default::default()))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        self.enter("PodSandboxStatus").await?;
        let id = request.into_inner().pod_sandbox_id;
        let state = self.state.lock().unwrap();
        let found = pick(&state.sandboxes, &id)?;
        let status = Some(v1::PodSandboxStatus {
            id: found.id,
            metadata: found.metadata,
            state: found.state,
            created_at: found.created_at,
            ..Default::default()
        });
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status,
            timestamp: state.time,
            ..Default::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        self.enter("ListPodSandbox").await?;
        let id = request.into_inner().filter.unwrap_or_default().id;
        let state = self.state.lock().unwrap();
        let items = state.sandboxes.values().filter(|s| s.id.starts_with(&id));
        let items = items.cloned().collect();
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        self.enter("CreateContainer").await?;
        let request = request.into_inner();
        let sandbox = pick(
            &self.state.lock().unwrap().sandboxes,
            &request.pod_sandbox_id,
        )?;
        let config = request.config.unwrap_or_default();
        let id = self.new_id();
        let container = v1::Container {
            id: id.clone(),
            pod_sandbox_id: sandbox.id,
            metadata: config.metadata,
            image: config.image,
            created_at: 1,
            labels: config.labels,
            ..Default::default()
        };
        let mut state = self.state.lock().unwrap();
        state.containers.insert(id.clone(), container);
        Ok(Response::new(v1::CreateContainerResponse {
            container_id: id,
        }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        self.enter("StartContainer").await?;
        let id = request.into_inner().container_id;
        let found = pick(&self.state.lock().unwrap().containers, &id)?;
        let mut state = self.state.lock().unwrap();
        if let Some(container) = state.containers.get_mut(&found.id) {
            container.state = v1::ContainerState::ContainerRunning.into();
        }
        Ok(Response::new(Default::default()))
    }

    async fn stop_container(
        &self,
        _: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        self.enter("StopContainer").await?;
        Ok(Response::new(Default::default()))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        self.enter("RemoveContainer").await?;
        let id = request.into_inner().container_id;
        self.state.lock().unwrap().containers.remove(&id);
        Ok(Response::new(Default::default()))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        self.enter("ContainerStatus").await?;
        let id = request.into_inner().container_id;
        let found = pick(&self.state.lock().unwrap().containers, &id)?;
        let status = Some(v1::ContainerStatus {
            id: found.id,
            metadata: found.metadata,
            state: found.state,
            created_at: found.created_at,
            image_ref: "ref".into(),
            ..Default::default()
        });
        Ok(Response::new(v1::ContainerStatusResponse {
            status,
            ..Default::default()
        }))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        self.enter("ListContainers").await?;
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.state.lock().unwrap();
        let containers = state.containers.values().filter(|c| {
            let mut labels = filter.label_selector.iter();
            c.id.starts_with(&filter.id)
                && c.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
                && labels.all(|(k, v)| c.labels.get(k) == Some(v))
        });
        let containers = containers.cloned().collect();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        self.enter("ExecSync").await?;
        pick(
            &self.state.lock().unwrap().containers,
            &request.into_inner().container_id,
        )?;
        Ok(Response::new(v1::ExecSyncResponse {
            stdout: self.name.clone().into(),
            ..Default::default()
        }))
    }

    async fn list_container_stats(
        &self,
        _: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        self.enter("ListContainerStats").await?;
        let state = self.state.lock().unwrap();
        let stats = state.containers.keys().map(|id| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: id.clone(),
                ..Default::default()
            }),
            ..Default::default()
        });
        let stats = stats.collect();
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        self.enter("ListMetricDescriptors").await?;
        let descriptors = self.state.lock().unwrap().descriptors.clone();
        Ok(Response::new(v1::ListMetricDescriptorsResponse {
            descriptors,
        }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        self.enter("ListPodSandboxMetrics").await?;
        let pod_metrics = self.state.lock().unwrap().metrics.clone();
        Ok(Response::new(v1::ListPodSandboxMetricsResponse {
            pod_metrics,
        }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Items<v1::StreamPodSandboxMetricsResponse>> {
        self.enter("StreamPodSandboxMetrics").await?;
        let pod_sandbox_metrics = self.state.lock().unwrap().metrics.clone();
        let one = v1::StreamPodSandboxMetricsResponse {
            pod_sandbox_metrics,
        };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(one)))))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Items<v1::ContainerEventResponse>> {
        self.enter("GetContainerEvents").await?;
        let state = self.state.lock().unwrap();
        let Some(events) = &state.events else {
            return Err(Status::unimplemented("no events"));
        };
        let events = BroadcastStream::new(events.subscribe());
        let events = events.map(|event| event.map_err(|e| Status::data_loss(e.to_string())));
        Ok(Response::new(Box::pin(events)))
    }

    async fn stream_pod_sandboxes(
        &self,
        _: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Items<v1::StreamPodSandboxesResponse>> {
        self.enter("StreamPodSandboxes").await?;
        if !self.suffix.is_empty() {
            return Err(Status::unimplemented("lists do"));
        }
        let state = self.state.lock().unwrap();
        let messages = state.sandboxes.values().map(|sandbox| {
            Ok(v1::StreamPodSandboxesResponse {
                pod_sandboxes: vec![sandbox.clone()],
            })
        });
        let messages: Vec<_> = messages.collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}
