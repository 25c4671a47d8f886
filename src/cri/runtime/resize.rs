//! Requests to change resources.
//!
//! Invariant: a pod's cgroup is kubelet's to change; we say whether the machine can live with it,
//! and change what is the machine's own.
//! Failure: `FailedPrecondition` and a sentence for what a machine cannot do.

use cri_proto::v1;
use podspec::PodResources;
use tonic::Status;

use super::Pods;
use crate::cri::convert;
use crate::platform::Platform;

impl<P: Platform> Pods<P> {
    pub(super) async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<v1::UpdateContainerResourcesResponse, Status> {
        let update = convert::container::resources("linux", request.linux.unwrap_or_default())?;
        let container = self.container(&request.container_id)?;
        self.containers.update(&container.id, update).await?;
        Ok(v1::UpdateContainerResourcesResponse {})
    }

    pub(super) async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<v1::UpdatePodSandboxResourcesResponse, Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let wanted = request.resources.unwrap_or_default();
        let wanted = PodResources {
            cpu_quota: wanted.cpu_quota,
            cpu_period: wanted.cpu_period,
            memory_limit: wanted.memory_limit_in_bytes,
        };
        self.containers.check_resize(&sandbox.id, wanted)?;
        Ok(v1::UpdatePodSandboxResourcesResponse {})
    }
}
