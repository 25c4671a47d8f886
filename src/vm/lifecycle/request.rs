//! What a pod and its container request of their machine.
//!
//! Invariant: annotations and limits of the container take precedence over those of the pod.
//! Failure: an annotation that is not valid.

use std::collections::BTreeMap;

use podspec::{AnnotationError, GuestData, Instance, Machine, PodResources, Role};

use crate::sandbox::{Sandbox, SandboxConfig};
use crate::vm::error::Result;
use crate::vm::model::ContainerConfig;

/// The annotations of a pod and of its container, which win.
pub(in crate::vm) fn annotations(
    sandbox: &Sandbox,
    config: &ContainerConfig,
) -> BTreeMap<String, String> {
    let mut annotations = sandbox.config.annotations.clone();
    annotations.extend(config.annotations.clone());
    annotations
}

/// The virtual machine that the pod runs. Only the pod can name it.
pub(in crate::vm) fn instance(sandbox: &Sandbox, config: &ContainerConfig) -> Result<Instance> {
    let annotations = annotations(sandbox, config);
    Ok(Instance::from_pod(&annotations, &sandbox.config.labels)?)
}

/// The data for the guest, which every guest has unless its pod turns its cloud-init disk off. A
/// guest that continues from saved memory has the disk that it had.
pub(in crate::vm) fn guest_data(
    pod: &SandboxConfig,
    config: &ContainerConfig,
) -> Result<Option<GuestData>, AnnotationError> {
    let mut annotations = pod.annotations.clone();
    annotations.extend(config.annotations.clone());
    let instance = Instance::from_pod(&annotations, &pod.labels)?;
    let data = GuestData::from_pod(&annotations)?;
    Ok(data.filter(|_| instance.role == Role::Machine))
}

/// The machine that the pod and its container request; the container's limits win over the pod's.
pub(in crate::vm) fn machine(
    sandbox: &Sandbox,
    config: &ContainerConfig,
    defaults: podspec::Defaults,
) -> Result<Machine> {
    let annotations = annotations(sandbox, config);
    let own = &config.resources;
    let pod = sandbox.config.resources;
    let given = |own: i64, pod: i64| if own > 0 { own } else { pod };
    let cpu = if own.cpu_quota > 0 {
        (own.cpu_quota, own.cpu_period)
    } else {
        (pod.cpu_quota, pod.cpu_period)
    };
    let resources = PodResources {
        cpu_quota: cpu.0,
        cpu_period: cpu.1,
        memory_limit: given(own.memory_limit_in_bytes, pod.memory_limit),
    };
    Ok(Machine::from_pod(&annotations, resources, defaults)?)
}
