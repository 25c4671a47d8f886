//! Requests about sandboxes.
//!
//! Invariant: stopping and removing what is not there succeeds; everything else about it is
//! `NotFound`.
//! Failure: statuses from [`status`](crate::cri::status).

use std::sync::Arc;

use cri_proto::v1;
use tonic::Status;
use tracing::Span;

use super::{Pods, if_known};
use crate::clock;
use crate::cri::{convert, filter, info};
use crate::platform::Platform;
use crate::sandbox::Sandbox;

impl<P: Platform> Pods<P> {
    fn known_sandbox(&self, id: &str) -> Result<Option<Arc<Sandbox>>, Status> {
        let found = if_known(self.sandboxes.find(id))?;
        if let Some(sandbox) = &found {
            Span::current().record("sandbox", sandbox.id.as_str());
        }
        Ok(found)
    }

    pub(super) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, Status> {
        let sandbox = self.sandboxes.find(id)?;
        Span::current().record("sandbox", sandbox.id.as_str());
        Ok(sandbox)
    }

    pub(super) async fn run_pod_sandbox(
        &self,
        request: v1::RunPodSandboxRequest,
    ) -> Result<v1::RunPodSandboxResponse, Status> {
        let config = convert::sandbox::config(request)?;
        let pod = format!("{}/{}", config.metadata.namespace, config.metadata.name);
        Span::current().record("pod", pod);
        let pod_sandbox_id = self.sandboxes.run(config).await?.to_string();
        Ok(v1::RunPodSandboxResponse { pod_sandbox_id })
    }

    pub(super) async fn stop_pod_sandbox(
        &self,
        request: v1::StopPodSandboxRequest,
    ) -> Result<v1::StopPodSandboxResponse, Status> {
        if let Some(sandbox) = self.known_sandbox(&request.pod_sandbox_id)? {
            self.sandboxes.stop(&sandbox.id).await?;
        }
        Ok(v1::StopPodSandboxResponse {})
    }

    pub(super) async fn remove_pod_sandbox(
        &self,
        request: v1::RemovePodSandboxRequest,
    ) -> Result<v1::RemovePodSandboxResponse, Status> {
        if let Some(sandbox) = self.known_sandbox(&request.pod_sandbox_id)? {
            self.sandboxes.remove(&sandbox.id).await?;
        }
        Ok(v1::RemovePodSandboxResponse {})
    }

    pub(super) async fn pod_sandbox_status(
        &self,
        request: v1::PodSandboxStatusRequest,
    ) -> Result<v1::PodSandboxStatusResponse, Status> {
        // Before what it is the time of: kubelet ignores events that are older than a status.
        let timestamp = clock::now();
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let mut containers = self.containers.list();
        containers.retain(|container| container.sandbox == sandbox.id);
        convert::container::newest_first(&mut containers);
        let info = if request.verbose {
            info::sandbox(&sandbox)
        } else {
            info::Info::new()
        };
        Ok(v1::PodSandboxStatusResponse {
            status: Some(convert::sandbox::status(&sandbox)),
            info,
            containers_statuses: containers.iter().map(|c| self.status_of(c)).collect(),
            timestamp,
        })
    }

    pub(super) async fn list_pod_sandbox(
        &self,
        request: v1::ListPodSandboxRequest,
    ) -> Result<v1::ListPodSandboxResponse, Status> {
        let sandboxes = filter::sandboxes(self.sandboxes.list(), request.filter);
        let items = sandboxes
            .iter()
            .map(|s| convert::sandbox::item(s))
            .collect();
        Ok(v1::ListPodSandboxResponse { items })
    }
}
