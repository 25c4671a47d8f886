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

/// A snapshot of a virtual machine.
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
    doc = "A snapshot of a virtual machine. Not implemented by any controller yet.",
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
    /// Includes the memory in the snapshot. Immutable.
    #[serde(default)]
    pub memory: bool,
    /// Flushes the file systems of the guest before the snapshot is taken. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce: Option<Quiesce>,
    /// Description of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
}

/// How the file systems of the guest are flushed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quiesce {
    /// Maximum time for the guest to flush its file systems, as a Go duration. Defaults to `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub timeout: Option<String>,
}

/// Observed state of a snapshot.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSnapshotStatus {
    /// Power state of the machine when the snapshot was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Whether the guest flushed its file systems.
    #[serde(default)]
    pub quiesced: bool,
    /// Name of the snapshot in the hypervisor.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "uniqueID")]
    pub unique_id: Option<String>,
    /// Snapshots that descend from this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub children: Vec<SnapshotChild>,
    /// Storage that the snapshot uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<SnapshotStorage>,
    /// Conditions by type: `VirtualMachineSnapshotCreated`, `VirtualMachineSnapshotReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A snapshot that descends from another one.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotChild {
    /// Whether an object represents the snapshot.
    #[serde(rename = "type")]
    pub type_: SnapshotChildType,
    /// Name of the object, or the name in the hypervisor if there is no object.
    pub name: String,
}

/// Whether an object represents a snapshot.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum SnapshotChildType {
    /// A `VirtualMachineSnapshot` represents it.
    Managed,
    /// The snapshot was taken manually.
    Unmanaged,
}

/// Storage that a snapshot uses.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStorage {
    /// Sum of the virtual sizes, including memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
    /// Space used on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Quantity>,
}
