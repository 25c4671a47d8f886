//! The event of a change that a comparison of lists has found.
//!
//! Invariant: the time of the event is not later than that of the status in it. kubelet keeps the
//! status with the latest time and ignores later events with an earlier one: an old status with
//! the time of its sending would hide the changes between the two.
//! Failure: none. A runtime that does not answer is queried again; an object that no longer exists
//! has no status.

use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use prost::Message;
use tonic::Code;

use super::super::made::nanoseconds;
use super::super::{Call, Proxy};
use super::PAUSE;
use super::snapshot::{Change, Snapshot};
use crate::backend::{Backend, Failure};

const POD_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";

impl Proxy {
    /// The event of a change, with the status of the pod that still exists.
    pub(super) async fn report(
        &self,
        backend: &Backend,
        now: &Snapshot,
        change: &Change,
    ) -> v1::ContainerEventResponse {
        let limit = self.limits.fanout_timeout.get();
        let before = nanoseconds();
        let pod = query(backend, limit, POD_STATUS, &change.sandbox).await;
        let pod = v1::PodSandboxStatusResponse::decode(pod).unwrap_or_default();
        let mut containers_statuses = pod.containers_statuses;
        if containers_statuses.is_empty() {
            for container in now.containers_of(&change.sandbox) {
                let status = query(backend, limit, STATUS, container).await;
                let status = v1::ContainerStatusResponse::decode(status).unwrap_or_default();
                containers_statuses.extend(status.status);
            }
        }
        v1::ContainerEventResponse {
            container_id: change.id.clone(),
            container_event_type: change.event.into(),
            // A runtime without events of pods leaves the time out.
            created_at: if pod.timestamp > 0 {
                pod.timestamp
            } else {
                before
            },
            pod_sandbox_status: pod.status,
            containers_statuses,
        }
    }
}

/// The message that the runtime answers with; empty when it refuses.
async fn query(backend: &Backend, limit: Duration, path: &'static str, id: &str) -> Bytes {
    loop {
        let request = Call::own(path, "events").copy(&crate::wire::tagged(1, id.as_bytes()));
        match backend.unary_within(limit, "events", request).await {
            Ok(answer) => return answer.message,
            Err(Failure::Refused(refused)) if refused.code != Code::Unavailable => {
                return Bytes::new();
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
