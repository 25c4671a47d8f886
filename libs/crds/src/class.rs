//! `VirtualMachineClass`: a size.
//!
//! Invariant: a machine has a copy of the class that it took over, so that an edit reaches none by itself.
//! Failure: a class that is missing or invalid shows in the machine's `VirtualMachineClassReady`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

/// A size of machine.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineClass",
    namespaced,
    derive = "PartialEq",
    shortname = "vmclass",
    category = "vmlet-all",
    doc = "A size of machine.",
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".spec.hardware.cpus"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.hardware.memory"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(validation = rule(
    "!has(self.policies) || !has(self.policies.resources) || !has(self.policies.resources.limits) || \
     !has(self.policies.resources.limits.memory) || \
     !quantity(string(self.policies.resources.limits.memory)).isLessThan(quantity(string(self.hardware.memory)))",
    "policies.resources.limits.memory must hold the guest's hardware.memory",
))]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineClassSpec {
    /// What the guest sees.
    pub hardware: ClassHardware,
    /// What the node reserves for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<ClassPolicies>,
    /// RuntimeClass of the pods; empty: `vmlet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub runtime_class_name: Option<String>,
    /// Machine type of libvirt: `q35`, or a version of it such as `pc-q35-7.2`; empty: `q35`, the newest of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::MACHINE_TYPE))]
    pub machine_type: Option<String>,
    /// CPU model, `host-passthrough` or `host-model`; empty: the node's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::WORD))]
    pub cpu_model: Option<String>,
    /// Nodes that machines of this class may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Which controller serves this class; empty: this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub controller_name: Option<String>,
}

/// What the guest sees.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassHardware {
    /// Number of virtual CPUs, 1 to 512.
    #[schemars(range(min = 1, max = 512))]
    pub cpus: u32,
    /// Guest memory.
    #[x_kube(validation = rules::mebibytes(), validation = rules::between("32Mi", "16Ti"))]
    pub memory: Quantity,
}

/// What the node reserves.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassPolicies {
    /// CPU and memory as Kubernetes counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ClassResources>,
}

/// CPU and memory as Kubernetes counts them.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[x_kube(
    validation = rule(
        "!has(self.requests) || !has(self.limits) || !has(self.requests.cpu) || !has(self.limits.cpu) || \
         !quantity(string(self.requests.cpu)).isGreaterThan(quantity(string(self.limits.cpu)))",
        "requests.cpu must not be above limits.cpu",
    ),
    validation = rule(
        "!has(self.requests) || !has(self.limits) || !has(self.requests.memory) || !has(self.limits.memory) || \
         !quantity(string(self.requests.memory)).isGreaterThan(quantity(string(self.limits.memory)))",
        "requests.memory must not be above limits.memory",
    ),
)]
#[serde(rename_all = "camelCase")]
pub struct ClassResources {
    /// What the scheduler reserves.
    #[serde(default)]
    pub requests: ResourceList,
    /// What the cgroup allows.
    #[serde(default)]
    pub limits: ResourceList,
}

/// Amounts of CPU and memory.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList {
    /// CPU; empty: nothing for requests, unlimited for limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::positive())]
    pub cpu: Option<Quantity>,
    /// Memory; empty: the hardware's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::positive())]
    pub memory: Option<Quantity>,
}
