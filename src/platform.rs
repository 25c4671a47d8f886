//! The trait that joins the hypervisor and the tapmanager for the services.
//!
//! Invariant: all services of a process use one platform; `app` has the real one, tests have
//! one that keeps state only.
//! Failure: none here.

use std::fmt::Debug;

use libvirt::Hypervisor;

use crate::network::PodNetwork;

/// The helpers of a node.
pub trait Platform: Debug + Send + Sync + 'static {
    /// Runs machines.
    type Hypervisor: Hypervisor + Debug;
    /// Makes and removes the networks of sandboxes.
    type Network: PodNetwork + Debug;
}
