//! `VirtualMachineSnapshot`: a machine's disks, and its memory where wanted, at one moment.
//!
//! Invariant: a snapshot belongs to one disk of one machine. The controller alone writes the status.
//! Failure: shows in `VirtualMachineSnapshotCreated`; the machine runs on.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawRecord;
use crate::conditions;
use crate::rules::{self, immutable};
use crate::vm::PowerState;

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
    doc = "A snapshot of a virtual machine.",
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
    /// Includes the memory of the guest, at the moment of the disk: a machine that reverts to the snapshot resumes from
    /// there. The machine has to run, without claims and without `quiesce`. Immutable.
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
    /// Maximum time for the guest to flush its file systems, as a Go duration of at most ten minutes
    /// (`10m`), rounded up to whole seconds. Defaults to `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    #[x_kube(validation = rules::rule("duration(self) <= duration('10m')", "must be at most 10m"))]
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
    /// Whether the snapshot has the memory of the guest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Name of the snapshot on the node.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "uniqueID")]
    pub unique_id: Option<String>,
    /// UID under which the node stores the disk that the snapshot is of. Written before the node
    /// takes the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "diskUID")]
    pub disk_uid: Option<String>,
    /// Time at which the node took the snapshot, or the storage system if the root disk is a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Specification, labels and annotations of the machine when the snapshot was requested from the
    /// node. A machine that reverts to the snapshot gets them back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::vm::any_object")]
    pub manifest: Option<RawRecord>,
    /// Snapshot that this one descends from. Empty for a snapshot of a disk without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SnapshotReference>,
    /// Snapshots that descend from this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub children: Vec<SnapshotReference>,
    /// Storage that the snapshot uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<SnapshotStorage>,
    /// Snapshots of the claims of the machine, which the storage system takes. Written before they
    /// are requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["claimName"]))]
    #[schemars(length(max = 33))]
    pub claims: Vec<ClaimSnapshot>,
    /// Conditions by type: `VirtualMachineSnapshotCreated`, `VirtualMachineSnapshotCSISynced`,
    /// `VirtualMachineSnapshotReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A reference to a snapshot.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotReference {
    /// Whether an object represents the snapshot.
    #[serde(rename = "type")]
    pub type_: SnapshotReferenceType,
    /// Name of the object, or the name on the node if there is no object.
    pub name: String,
    /// UID of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Whether an object represents a snapshot.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum SnapshotReferenceType {
    /// A `VirtualMachineSnapshot` represents it.
    Managed,
    /// The snapshot was taken manually.
    Unmanaged,
}

/// The snapshot of a claim.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSnapshot {
    /// Name of the claim.
    pub claim_name: String,
    /// Name of the machine's volume; `vmlet-root` for the root disk in a storage class.
    pub volume_name: String,
    /// Name of the `VolumeSnapshot` in the namespace of the machine.
    pub volume_snapshot_name: String,
    /// Time from which on it is requested of the storage system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_time: Option<Time>,
    /// Time at which the storage system took it. Each claim has its own: none is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Whether a new claim can be made from it.
    #[serde(default)]
    pub ready: bool,
    /// Least size of such a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// Last error of the storage system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub error: Option<String>,
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

impl VirtualMachineSnapshotSpec {
    /// Most snapshots of a machine.
    pub const MOST: usize = 32;
}

impl VirtualMachineSnapshot {
    /// A reference to the object.
    #[must_use]
    pub fn reference(&self) -> SnapshotReference {
        SnapshotReference {
            type_: SnapshotReferenceType::Managed,
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone(),
        }
    }

    /// The condition of that type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        conditions::find(&self.status.as_ref()?.conditions, kind)
    }

    /// Whether the node has taken it.
    #[must_use]
    pub fn is_created(&self) -> bool {
        let created = self.condition(conditions::SNAPSHOT_CREATED);
        created.is_some_and(|created| created.status == "True")
    }
}
