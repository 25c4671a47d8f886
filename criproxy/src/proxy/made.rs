//! Objects that a secondary has just created, as its next list will have them.
//!
//! Invariant: built from the request alone: no runtime is queried again while the answer waits.
//! Failure: `None` for a request that cannot be decoded; then the next list contains the object.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cri_proto::v1;
use prost::Message;

/// An entry of the list of sandboxes.
pub(super) fn sandbox(id: &str, request: &Bytes) -> Option<Vec<u8>> {
    let request = v1::RunPodSandboxRequest::decode(request.clone()).ok()?;
    let config = request.config?;
    let entry = v1::PodSandbox {
        id: id.into(),
        metadata: config.metadata,
        state: v1::PodSandboxState::SandboxReady.into(),
        created_at: nanoseconds(),
        labels: config.labels,
        annotations: config.annotations,
        runtime_handler: request.runtime_handler,
    };
    Some(entry.encode_to_vec())
}

/// An entry of the list of containers.
pub(super) fn container(id: &str, request: &Bytes) -> Option<Vec<u8>> {
    let request = v1::CreateContainerRequest::decode(request.clone()).ok()?;
    let config = request.config?;
    let image = config.image.unwrap_or_default();
    let entry = v1::Container {
        id: id.into(),
        pod_sandbox_id: request.pod_sandbox_id,
        metadata: config.metadata,
        image_ref: image.image.clone(),
        image_id: image.image.clone(),
        image: Some(image),
        state: v1::ContainerState::ContainerCreated.into(),
        created_at: nanoseconds(),
        labels: config.labels,
        annotations: config.annotations,
    };
    Some(entry.encode_to_vec())
}

/// Nanoseconds from the epoch to now.
pub(super) fn nanoseconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.ok()
        .and_then(|now| i64::try_from(now.as_nanos()).ok())
        .unwrap_or_default()
}
