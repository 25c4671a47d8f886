//! One machine with its pod.
//!
//! Invariant: a pod of the same name that belongs to something else is none of the machine's.
//! Failure: the cluster's.

use crds::VirtualMachine;
use crds::names::VM_UID_LABEL;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lifecycle::verbs::{Change, Verb, verb};
use lifecycle::{Deletion, DesiredState, Instance, Meta, NodeState};

use super::{Cluster, ClusterError};

/// A machine and what it runs in.
pub(crate) struct Found {
    pub(crate) vm: VirtualMachine,
    pub(crate) pod: Option<Pod>,
}

/// Whether the pod is an instance of the machine.
fn pod_of(vm: &VirtualMachine, pod: &Pod) -> bool {
    let uid = vm.metadata.uid.as_ref();
    pod.metadata.name == vm.metadata.name && uid.is_some() && pod.labels().get(VM_UID_LABEL) == uid
}

impl Cluster {
    /// Reads a machine and its pod.
    pub(crate) async fn find(&self, name: &str) -> Result<Found, ClusterError> {
        let about = |error| ClusterError::about(&self.namespace, name, error);
        let vm = self.machines().get(name).await.map_err(about)?;
        let pod = self.api::<Pod>().get_opt(name).await.map_err(about)?;
        let pod = pod.filter(|pod| pod_of(&vm, pod));
        Ok(Found { vm, pod })
    }
}

impl Found {
    /// What the pod reports. The node is assumed to be ready: a verb does not affect one that is
    /// not.
    pub(crate) fn instance(&self) -> Option<Instance> {
        self.pod
            .as_ref()
            .map(|pod| Instance::from_pod(pod, NodeState::Ready))
    }

    /// What the verb writes.
    pub(crate) fn change(&self, requested: Verb) -> Result<Change, ClusterError> {
        let status = self.vm.status.clone().unwrap_or_default();
        let meta = Meta {
            generation: self.vm.metadata.generation.unwrap_or(0),
            deletion: match self.vm.metadata.deletion_timestamp {
                Some(_) => Deletion::WithInstance,
                None => Deletion::No,
            },
            resume: DesiredState::remembered(self.vm.annotations()),
            unpause: None,
        };
        verb(
            &self.vm.spec,
            &status,
            &meta,
            self.instance().as_ref(),
            requested,
        )
        .map_err(|conflict| ClusterError::Conflict {
            name: self.vm.name_any(),
            conflict: conflict.to_string(),
        })
    }
}
