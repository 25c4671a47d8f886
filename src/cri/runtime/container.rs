//! Requests about containers.
//!
//! Invariant: stopping and removing what is not there succeeds; everything else about it is
//! `NotFound`.
//! Failure: statuses from [`status`](crate::cri::status).

use std::collections::HashMap;
use std::sync::Arc;

use cri_proto::v1;
use tonic::Status;
use tracing::Span;

use super::{Pods, if_known};
use crate::cri::{convert, filter, info};
use crate::platform::Platform;
use crate::vm::Container;

impl<P: Platform> Pods<P> {
    fn known_container(&self, id: &str) -> Result<Option<Arc<Container>>, Status> {
        let found = if_known(self.containers.find(id))?;
        if let Some(container) = &found {
            Span::current().record("container", container.id.as_str());
        }
        Ok(found)
    }

    pub(super) fn container(&self, id: &str) -> Result<Arc<Container>, Status> {
        let container = self.containers.find(id)?;
        Span::current().record("container", container.id.as_str());
        Ok(container)
    }

    pub(super) fn status_of(&self, container: &Container) -> v1::ContainerStatus {
        let image = self.images.find(&container.spec.image_digest);
        convert::container::status(container, image.as_ref())
    }

    pub(super) async fn create_container(
        &self,
        request: v1::CreateContainerRequest,
    ) -> Result<v1::CreateContainerResponse, Status> {
        let process = request.config.as_ref().map(convert::process::process);
        let config = convert::container::config(request.config)?;
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let containers = &self.containers;
        let process = process.filter(|_| sandbox.config.has_processes());
        let container_id = match process.transpose()?.flatten() {
            Some(process) => Box::pin(containers.create_in(&sandbox.id, config, process)).await?,
            None => containers.create(&sandbox.id, config).await?,
        };
        let container_id = container_id.to_string();
        Ok(v1::CreateContainerResponse { container_id })
    }

    pub(super) async fn start_container(
        &self,
        request: v1::StartContainerRequest,
    ) -> Result<v1::StartContainerResponse, Status> {
        let container = self.container(&request.container_id)?;
        self.containers.start(&container.id).await?;
        Ok(v1::StartContainerResponse {})
    }

    pub(super) async fn stop_container(
        &self,
        request: v1::StopContainerRequest,
    ) -> Result<v1::StopContainerResponse, Status> {
        if let Some(container) = self.known_container(&request.container_id)? {
            let grace = convert::container::grace(request.timeout);
            self.containers.stop(&container.id, grace).await?;
        }
        Ok(v1::StopContainerResponse {})
    }

    pub(super) async fn remove_container(
        &self,
        request: v1::RemoveContainerRequest,
    ) -> Result<v1::RemoveContainerResponse, Status> {
        if let Some(container) = self.known_container(&request.container_id)? {
            self.containers.remove(&container.id).await?;
        }
        Ok(v1::RemoveContainerResponse {})
    }

    pub(super) async fn container_status(
        &self,
        request: v1::ContainerStatusRequest,
    ) -> Result<v1::ContainerStatusResponse, Status> {
        let container = self.container(&request.container_id)?;
        let info = if request.verbose {
            let sandbox = self.sandboxes.find(container.sandbox.as_str()).ok();
            let facts = self.containers.facts(&container).await;
            let guest = self.containers.last_guest_report(&container.id);
            info::container(&container, sandbox.as_deref(), &facts, guest.as_ref())
        } else {
            info::Info::new()
        };
        Ok(v1::ContainerStatusResponse {
            status: Some(self.status_of(&container)),
            info,
        })
    }

    pub(super) async fn list_containers(
        &self,
        request: v1::ListContainersRequest,
    ) -> Result<v1::ListContainersResponse, Status> {
        let containers = filter::containers(self.containers.list(), request.filter);
        // Looked up once for the whole list: many containers share few images.
        let images = self.images.list().into_iter();
        let images: HashMap<_, _> = images.map(|i| (i.digest.to_string(), i)).collect();
        let item = |container: &Arc<Container>| {
            convert::container::item(container, images.get(&container.spec.image_digest))
        };
        let containers = containers.iter().map(item).collect();
        Ok(v1::ListContainersResponse { containers })
    }

    pub(super) async fn reopen_container_log(
        &self,
        request: v1::ReopenContainerLogRequest,
    ) -> Result<v1::ReopenContainerLogResponse, Status> {
        let container = self.container(&request.container_id)?;
        self.containers.reopen_log(&container.id).await?;
        Ok(v1::ReopenContainerLogResponse {})
    }
}
