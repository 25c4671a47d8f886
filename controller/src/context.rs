//! Everything that a pass may read and do.
//!
//! Invariant: reads come from stores that watches feed; a pass never lists from the API server.
//! Failure: a store that is not ready yet holds the workers back (the runner waits for all of them).

use std::fmt;
use std::sync::Arc;

use crds::{VirtualMachine, VirtualMachineClass, VirtualMachineTask};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::runtime::reflector::Store;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What the watches keep up to date.
#[allow(missing_debug_implementations, reason = "stores have none")]
#[derive(Clone)]
pub struct Stores {
    /// Machines.
    pub vms: Store<VirtualMachine>,
    /// Pods that carry our role label.
    pub pods: Store<Pod>,
    /// Tasks.
    pub tasks: Store<VirtualMachineTask>,
    /// Classes.
    pub classes: Store<VirtualMachineClass>,
    /// Nodes.
    pub nodes: Store<Node>,
    /// Claims.
    pub claims: Store<PersistentVolumeClaim>,
}

/// Time, replaceable in tests.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// What a pass works with.
#[allow(missing_debug_implementations, reason = "clients and stores have none")]
#[derive(Clone)]
pub struct Context {
    /// Writes, and the few live reads that must not be stale.
    pub client: Client,
    /// Reads.
    pub stores: Stores,
    /// Now.
    pub clock: Clock,
}
