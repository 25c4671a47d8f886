//! The status of a machine.
//!
//! Invariant: written by the controller alone, except that verbs append to `stateChangeRequests`.
//! Failure: a part that cannot be found out keeps its last value; a condition reports it.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SnapshotReference;

use super::{PowerState, RunStrategy, StateChangeRequest};

/// Observed state of a machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    /// Summary of the state in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<PrintableStatus>,
    /// What keeps the machine from its desired state, as a sentence. Empty if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub message: Option<String>,
    /// Observed power state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Whether a pod exists, in any phase.
    #[serde(default)]
    pub created: bool,
    /// Whether the pod is ready.
    #[serde(default)]
    pub ready: bool,
    /// Conditions by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Pending requests. The controller acts only on the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub state_change_requests: Vec<StateChangeRequest>,
    /// Consecutive failed starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<StartFailure>,
    /// Strategy that the controller last acted on. Empty until the first instance exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<RunStrategy>,
    /// Generation that the running instance was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation of the object when `observedGeneration` was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// Current or last instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceStatus>,
    /// Node that holds the root disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Zone of that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `<node>/<instance UUID>`, or `pvc/<instance UUID>`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "uniqueID")]
    #[schemars(length(max = 320))]
    pub unique_id: Option<String>,
    /// UUID in the guest's SMBIOS tables.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "biosUUID")]
    pub bios_uuid: Option<String>,
    /// UUID of the libvirt domain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "instanceUUID"
    )]
    pub instance_uuid: Option<String>,
    /// Image that the root disk was made from, under the name that pods use. It is kept even if the
    /// image object is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1100))]
    pub image: Option<String>,
    /// URL of the image, if the image name is derived from the hash of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "imageURL")]
    #[schemars(length(max = 2048))]
    pub image_url: Option<String>,
    /// UID under which the node stores the root disk, if it differs from the UID of this machine
    /// because the machine adopted a running pod, or took over the disk of an earlier machine.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "diskUID")]
    pub disk_uid: Option<String>,
    /// Class that defines the current size of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// UID and generation of the class when it was applied, as `uid/generation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_revision: Option<String>,
    /// Specification of the class when it was applied. An edit of the class has no effect until it
    /// is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::volumes::any_object")]
    pub class_spec: Option<serde_json::Value>,
    /// Volumes, network, bootstrap data and annotations of the template with which the memory was saved.
    /// A suspended machine resumes with these; edits of them take effect at the next start without saved
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::volumes::any_object")]
    pub saved_devices: Option<crate::RawRecord>,
    /// Machine type that the alias resolved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// What boots the guest: `bios` or `uefi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Addresses of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStatus>,
    /// Disks of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 33), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<VolumeStatus>,
    /// Storage that the machine uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// Current size of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareStatus>,
    /// Information that the guest reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStatus>,
    /// Snapshot that the disk descends from: the last one that was taken, or reverted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_snapshot: Option<SnapshotReference>,
    /// Snapshots of the disk that descend from no other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub root_snapshots: Vec<SnapshotReference>,
    /// The revert in progress. The machine stays off until it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_revert: Option<SnapshotRevert>,
    /// Time of the last requested restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_restart_time: Option<Time>,
    /// Creation of the root disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderStatus>,
}

/// Summary of the state in one word; `lifecycle::printable` defines the order of evaluation.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[allow(missing_docs, reason = "each value is its own description")]
pub enum PrintableStatus {
    Terminating,
    Stopping,
    Paused,
    Running,
    Suspended,
    ErrorPvcNotFound,
    DataVolumeError,
    ErrorUnschedulable,
    ErrorClass,
    ErrorImage,
    ErrorStorage,
    ErrorBootstrap,
    ErrorNetwork,
    Provisioning,
    WaitingForVolumeBinding,
    ErrImagePull,
    ImagePullBackOff,
    InvalidImageName,
    Starting,
    CrashLoopBackOff,
    Stopped,
    Unknown,
}

/// Consecutive failed starts.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFailure {
    /// Number of consecutive failed starts.
    pub consecutive_fail_count: u32,
    /// UID of the last pod that was counted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "lastFailedUID"
    )]
    pub last_failed_uid: Option<String>,
    /// Time before which the controller does not start the machine again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_timestamp: Option<Time>,
}

/// Current or last instance.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// UID of the instance's pod.
    pub uid: String,
    /// Pending, Scheduling, Scheduled, Running, Succeeded, Failed or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Time at which the guest began to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Time at which the instance ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Exit code of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Reason for the end of the instance, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Reason for the end of the instance, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Whether the single run of the strategy `Once` is complete.
    #[serde(default)]
    pub once_completed: bool,
    /// What follows the end of the instance. Set before the pod is deleted. Empty if the end was
    /// not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub afterwards: Option<Afterwards>,
}

/// What follows the end of an instance.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum Afterwards {
    /// The machine stays off until its desired state changes.
    StayDown,
    /// Another instance starts, after the back-off if there is one.
    StartAgain,
}

/// Addresses of a machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// IPv4 address at which the machine is reachable.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "primaryIP4"
    )]
    pub primary_ip4: Option<String>,
    /// IPv6 address at which the machine is reachable.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "primaryIP6"
    )]
    pub primary_ip6: Option<String>,
    /// Host name of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// Interfaces that the guest reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// Intended network configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NetworkConfigStatus>,
}

/// A network interface as the guest reports it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name of the interface in the guest.
    pub name: String,
    /// MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_addr: Option<String>,
    /// Addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// Intended network configuration.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigStatus {
    /// Addresses that CNI assigned to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// State of a disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Name of the disk.
    pub name: String,
    /// Whether the disk can be used.
    #[serde(default)]
    pub attached: bool,
    /// Error of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub error: Option<String>,
    /// Virtual size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
}

/// Storage that a machine uses.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Virtual size of the root disk, if that is a file on the node; the pods of the machine
    /// request this much ephemeral storage. Empty while the size is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
}

/// Current size of a machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HardwareStatus {
    /// Number of virtual CPUs.
    #[serde(default)]
    pub cpus: u32,
    /// Guest memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Information that the guest reports.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestStatus {
    /// Identifier of the operating system, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "osID")]
    pub os_id: Option<String>,
    /// Display name of the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_name: Option<String>,
    /// Version of the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Kernel release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// A revert to a snapshot in progress.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRevert {
    /// Name of the snapshot.
    pub name: String,
    /// UID of the snapshot.
    pub uid: String,
    /// Time at which the revert was accepted.
    pub start_time: Time,
    /// What is done at present.
    pub phase: RevertPhase,
    /// Whether the machine resumes from the memory of the snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Claim that is the root disk after the revert, if one is. No node takes part in such a revert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_claim_name: Option<String>,
    /// Claims that the machine could write when the revert began, and that stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub earlier_claims: Vec<String>,
}

/// What is done of a revert at present.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum RevertPhase {
    /// The machine is powered off, and its node reverts the disk.
    Disk,
    /// The disk is reverted; new claims are made, and the specification of the snapshot is restored.
    Restoring,
}

/// Creation of the root disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// Time at which the root disk was complete. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
}
