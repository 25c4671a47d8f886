//! Requests for metrics.
//!
//! Invariant: an answer costs one look at all machines and one reading of details, which clients
//! share. Sandboxes that are not ready and containers that do not run have no metrics.
//! Failure: none; a sandbox whose figures are not known has the metrics of its specification.

use std::collections::HashMap;

use cri_proto::v1;
use tonic::Status;

use super::Pods;
use crate::clock;
use crate::cri::convert::metrics::{self, Sources};
use crate::platform::Platform;
use crate::sandbox::state::Phase;

impl<P: Platform> Pods<P> {
    #[allow(clippy::unused_async, reason = "every method of the service is async")]
    pub(super) async fn list_metric_descriptors(
        &self,
        _: v1::ListMetricDescriptorsRequest,
    ) -> Result<v1::ListMetricDescriptorsResponse, Status> {
        let descriptors = metrics::descriptors();
        Ok(v1::ListMetricDescriptorsResponse { descriptors })
    }

    pub(super) async fn list_pod_sandbox_metrics(
        &self,
        _: v1::ListPodSandboxMetricsRequest,
    ) -> Result<v1::ListPodSandboxMetricsResponse, Status> {
        let (view, details) = tokio::join!(self.view(), self.containers.details());
        let mut running: HashMap<_, Vec<_>> = HashMap::new();
        for row in view.containers.iter().filter(|row| row.phase.runs()) {
            running.entry(&row.sandbox).or_default().push(row);
        }
        let mut sandboxes = self.sandboxes.list();
        sandboxes.retain(|sandbox| sandbox.phase == Phase::Ready);
        let at = clock::now();
        let pod_metrics = sandboxes.iter().map(|sandbox| {
            let usage = view.snapshot.pod(&sandbox.id);
            let sources = Sources {
                cpu: usage.cpu,
                memory: usage.memory,
                pressure: usage.pressure,
                disk: usage.disk,
                detail: details.for_sandbox(&sandbox.id),
                room: details.room.as_ref(),
                guest: None,
            };
            let containers = running.get(&sandbox.id).into_iter().flatten();
            let containers = containers.map(|row| {
                let usage = view.usage(row);
                let disk = view.disk(row);
                let report = self.containers.last_guest_report(&row.id);
                let guest = report.as_ref();
                let sources = Sources {
                    disk,
                    guest,
                    ..sources
                };
                metrics::of_container(row, sandbox, &usage, sources, at)
            });
            metrics::of_sandbox(sandbox, &usage, sources, at, containers.collect())
        });
        Ok(v1::ListPodSandboxMetricsResponse {
            pod_metrics: pod_metrics.collect(),
        })
    }
}
