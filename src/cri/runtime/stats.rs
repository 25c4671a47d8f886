//! Requests for the usage of containers and sandboxes.
//!
//! Invariant: a request costs one look at all machines at most, which others share; it never fails
//! because a helper is away, and lists hold every object that fits, with or without figures.
//! Failure: `NotFound` for an object that is not there.

use std::collections::HashMap;
use std::sync::Arc;

use cri_proto::v1;
use podspec::{ContainerId, SandboxId};
use tonic::Status;

use super::Pods;
use crate::clock;
use crate::cri::{convert, filter};
use crate::platform::Platform;
use crate::sandbox::{Sandbox, state::Phase};
use crate::vm::stats::{Disk, Snapshot, Usage};
use crate::vm::{self, Container};

/// Everything that answers are made from.
pub(super) struct View<'a, P: Platform> {
    pods: &'a Pods<P>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) containers: Vec<Arc<Container>>,
    /// The container that has each sandbox's root disk: the newest one.
    holders: HashMap<SandboxId, ContainerId>,
}

impl<P: Platform> Pods<P> {
    pub(super) async fn view(&self) -> View<'_, P> {
        let snapshot = self.containers.stats().await;
        let containers = self.containers.list();
        let mut newest: HashMap<SandboxId, &Container> = HashMap::new();
        for row in &containers {
            let holder = newest.entry(row.sandbox.clone()).or_insert(row);
            if holder.created_at < row.created_at {
                *holder = row;
            }
        }
        let holders = newest.into_iter().map(|(id, row)| (id, row.id.clone()));
        View {
            pods: self,
            snapshot,
            holders: holders.collect(),
            containers,
        }
    }

    pub(super) async fn container_stats(
        &self,
        request: v1::ContainerStatsRequest,
    ) -> Result<v1::ContainerStatsResponse, Status> {
        let container = self.container(&request.container_id)?;
        let stats = Some(self.view().await.container(&container));
        Ok(v1::ContainerStatsResponse { stats })
    }

    pub(super) async fn list_container_stats(
        &self,
        request: v1::ListContainerStatsRequest,
    ) -> Result<v1::ListContainerStatsResponse, Status> {
        let view = self.view().await;
        let filter = request.filter.map(|filter| v1::ContainerFilter {
            id: filter.id,
            state: None,
            pod_sandbox_id: filter.pod_sandbox_id,
            label_selector: filter.label_selector,
        });
        let containers = filter::containers(view.containers.clone(), filter);
        let containers = containers.into_iter().filter(|row| is_counted(row));
        let containers: Vec<_> = containers.collect();
        let stats = containers.iter().map(|row| view.container(row)).collect();
        Ok(v1::ListContainerStatsResponse { stats })
    }

    pub(super) async fn pod_sandbox_stats(
        &self,
        request: v1::PodSandboxStatsRequest,
    ) -> Result<v1::PodSandboxStatsResponse, Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let view = self.view().await;
        let containers = view.containers.iter();
        let containers: Vec<_> = containers.filter(|c| c.sandbox == sandbox.id).collect();
        let stats = Some(view.sandbox(&sandbox, &containers));
        Ok(v1::PodSandboxStatsResponse { stats })
    }

    /// Only of sandboxes that are ready: the others use nothing.
    pub(super) async fn list_pod_sandbox_stats(
        &self,
        request: v1::ListPodSandboxStatsRequest,
    ) -> Result<v1::ListPodSandboxStatsResponse, Status> {
        let view = self.view().await;
        let filter = request.filter.map(|filter| v1::PodSandboxFilter {
            id: filter.id,
            state: None,
            label_selector: filter.label_selector,
        });
        let mut sandboxes = filter::sandboxes(self.sandboxes.list(), filter);
        sandboxes.retain(|sandbox| sandbox.phase == Phase::Ready);
        let mut inside: HashMap<&SandboxId, Vec<&Arc<Container>>> = HashMap::new();
        for row in &view.containers {
            inside.entry(&row.sandbox).or_default().push(row);
        }
        let stats = sandboxes.iter().map(|sandbox| {
            let containers = inside.get(&sandbox.id).map_or(&[][..], Vec::as_slice);
            view.sandbox(sandbox, containers)
        });
        let stats = stats.collect();
        Ok(v1::ListPodSandboxStatsResponse { stats })
    }
}

/// Whether lists have the usage of a container. One that has ended uses nothing, and kubelet, which
/// looks containers up by name, would take it for the one that runs in its place.
fn is_counted(row: &Container) -> bool {
    row.phase != vm::state::Phase::Exited
}

impl<P: Platform> View<'_, P> {
    /// The root disk, for the container that has it.
    pub(super) fn disk(&self, row: &Container) -> Option<Disk> {
        let holds = self.holders.get(&row.sandbox) == Some(&row.id);
        self.snapshot.disk(&row.sandbox).filter(|_| holds)
    }

    fn container(&self, row: &Container) -> v1::ContainerStats {
        let disk = self.disk(row);
        let state_dir = &self.pods.state_dir;
        convert::stats::of_container(row, &self.usage(row), disk, state_dir)
    }

    /// What a container uses: a process as the guest reports it. One that has ended uses nothing,
    /// also where the snapshot is from before its end.
    pub(super) fn usage(&self, row: &Container) -> Usage {
        if !is_counted(row) {
            return Usage::default();
        }
        if row.is_process() {
            self.pods.containers.process_usage(&row.id)
        } else {
            self.snapshot.machine(&row.id)
        }
    }

    fn sandbox(&self, row: &Sandbox, containers: &[&Arc<Container>]) -> v1::PodSandboxStats {
        let running = containers.iter().filter(|c| c.phase.runs()).count() as u64;
        let containers = containers.iter().filter(|row| is_counted(row));
        let containers = containers.map(|c| self.container(c)).collect();
        let usage = self.snapshot.pod(&row.id);
        convert::stats::of_sandbox(row, &usage, running, clock::now(), containers)
    }
}
