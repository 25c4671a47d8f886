//! The definitions of all kinds, as the API server takes them.
//!
//! Invariant: every string, list and map has an upper bound, so that the cost of every rule has one.
//! Failure: none.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{
    ClusterVirtualMachineImage, ImageMapping, NodeConfig, VirtualMachine, VirtualMachineClass,
    VirtualMachineGroup, VirtualMachineImage, VirtualMachineImageCache, VirtualMachineSnapshot,
    VirtualMachineTask, Vmlet,
};

/// The definitions of all kinds, in alphabetical order of their names.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        VirtualMachine::crd(),
        VirtualMachineClass::crd(),
        VirtualMachineImage::crd(),
        ClusterVirtualMachineImage::crd(),
        VirtualMachineImageCache::crd(),
        VirtualMachineGroup::crd(),
        VirtualMachineSnapshot::crd(),
        VirtualMachineTask::crd(),
        ImageMapping::crd(),
        NodeConfig::crd(),
        Vmlet::crd(),
    ];
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}
