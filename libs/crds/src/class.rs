//! `VirtualMachineClass`: a size.
//!
//! Invariant: a machine has a copy of the class that it took over, so that an edit reaches none by
//! itself.
//! Failure: a class that is missing or invalid shows in the machine's `VirtualMachineClassReady`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

/// A size for virtual machines.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineClass",
    namespaced,
    derive = "PartialEq",
    shortname = "vmclass",
    category = "vmlet-all",
    doc = "A size for virtual machines.",
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
    /// Hardware that the guest sees.
    pub hardware: ClassHardware,
    /// Resources that the node reserves for the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<ClassPolicies>,
    /// RuntimeClass of the pods. Defaults to `vmlet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub runtime_class_name: Option<String>,
    /// libvirt machine type: `q35` or a version of it, such as `pc-q35-7.2`. Defaults to `q35`, the
    /// newest version on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::MACHINE_TYPE))]
    pub machine_type: Option<String>,
    /// CPU model, `host-passthrough` or `host-model`. Defaults to the node's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::WORD))]
    pub cpu_model: Option<String>,
    /// Labels of the nodes on which machines of this class can run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Controller that serves this class. Defaults to this controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub controller_name: Option<String>,
}

/// Hardware that the guest sees.
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

/// Resources that the node reserves.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassPolicies {
    /// CPU and memory requests and limits, as for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ClassResources>,
}

/// CPU and memory requests and limits, as for pods.
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
    /// Resources that the scheduler reserves.
    #[serde(default)]
    pub requests: ResourceList,
    /// Resources that the cgroup allows.
    #[serde(default)]
    pub limits: ResourceList,
}

/// Amounts of CPU and memory.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceList {
    /// CPU. If empty, requests are zero and limits are unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::positive())]
    pub cpu: Option<Quantity>,
    /// Memory. Defaults to the guest memory in `hardware`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::positive())]
    pub memory: Option<Quantity>,
}
