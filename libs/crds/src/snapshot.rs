//! `VirtualMachineSnapshot`: a machine's disks, and its memory where wanted, at one moment.
//!
//! Invariant: a snapshot belongs to one machine for good.
//! Failure: shows in `VirtualMachineSnapshotCreated`; the machine runs on.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::vm::PowerState;

use crate::rules::{self, immutable};

/// A machine at one moment.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineSnapshot",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineSnapshotStatus",
    shortname = "vmsnap",
    shortname = "vmsnapshot",
    category = "vmlet-all",
    doc = "A machine at one moment. No controller acts on it yet.",
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vmName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"VirtualMachineSnapshotReady\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = immutable("vmName"),
    validation = immutable("memory"),
    validation = immutable("quiesce")
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSnapshotSpec {
    /// Name of the machine. Immutable.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub vm_name: String,
    /// Keep the memory too. Immutable.
    #[serde(default)]
    pub memory: bool,
    /// Ask the guest to write out its file systems first. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce: Option<Quiesce>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
}

/// How the guest is asked to write out its file systems.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quiesce {
    /// How long the guest may take, as a Go duration; empty: `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub timeout: Option<String>,
}

/// How a snapshot stands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSnapshotStatus {
    /// The machine's power at that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// The guest wrote out its file systems.
    #[serde(default)]
    pub quiesced: bool,
    /// The hypervisor's name of it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "uniqueID")]
    pub unique_id: Option<String>,
    /// Snapshots that descend from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub children: Vec<SnapshotChild>,
    /// Space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<SnapshotStorage>,
    /// Details, by type: `VirtualMachineSnapshotCreated`, `VirtualMachineSnapshotReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A snapshot that descends from another one.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotChild {
    /// Whether an object stands for it.
    #[serde(rename = "type")]
    pub type_: SnapshotChildType,
    /// Name of the object, or the hypervisor's name.
    pub name: String,
}

/// Whether an object stands for a snapshot.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum SnapshotChildType {
    /// A `VirtualMachineSnapshot` does.
    Managed,
    /// Somebody took it by hand.
    Unmanaged,
}

/// Space that a snapshot takes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStorage {
    /// Virtual sizes together, memory included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
    /// What lies on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Quantity>,
}
