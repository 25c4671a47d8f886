//! How a machine stands.
//!
//! Invariant: written by the controller alone, except that verbs append to `stateChangeRequests`.
//! Failure: a part that cannot be found out keeps its last value; a condition says so.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PowerState, RunStrategy, StateChangeRequest};

/// How a machine stands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<PrintableStatus>,
    /// Observed power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// A pod exists, in whatever phase.
    #[serde(default)]
    pub created: bool,
    /// The pod is ready.
    #[serde(default)]
    pub ready: bool,
    /// Details, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Requests that wait; only the first is acted upon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub state_change_requests: Vec<StateChangeRequest>,
    /// Failed starts in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_failure: Option<StartFailure>,
    /// The strategy as last acted upon; empty until the first instance exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<RunStrategy>,
    /// Generation that the running instance was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation of the object when that was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The present or last instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceStatus>,
    /// Node of the root disk.
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
    /// UUID of the domain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "instanceUUID"
    )]
    pub instance_uuid: Option<String>,
    /// The image that the root disk was made from, as pods name it: it stays with the disk when the object goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// URL that the name of the image stands for, when it is made of the URL's hash.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "imageURL")]
    #[schemars(length(max = 2048))]
    pub image_url: Option<String>,
    /// UID under which the node keeps the root disk, when it is not this machine's own: its running pod was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "diskUID")]
    pub disk_uid: Option<String>,
    /// Class whose size the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// UID and generation of that class when it was applied, `uid/generation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_revision: Option<String>,
    /// Specification of that class when it was applied: an edit of the class changes nothing before it is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::volumes::any_object")]
    pub class_spec: Option<serde_json::Value>,
    /// Machine type that the alias resolved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStatus>,
    /// Disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<VolumeStatus>,
    /// Space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// Size that the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareStatus>,
    /// What the guest says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStatus>,
    /// Last restart on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_restart_time: Option<Time>,
    /// Snapshot that the disks descend from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_snapshot: Option<String>,
    /// Snapshots without a parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root_snapshots: Vec<String>,
    /// The root disk's birth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderStatus>,
}

/// One word for people; the order of evaluation is that of `lifecycle::printable`.
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

/// Failed starts in a row.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFailure {
    /// How many.
    pub consecutive_fail_count: u32,
    /// UID of the last pod that counted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "lastFailedUID"
    )]
    pub last_failed_uid: Option<String>,
    /// No start before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_timestamp: Option<Time>,
}

/// The present or last instance.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// UID of its pod.
    pub uid: String,
    /// Pending, Scheduling, Scheduled, Running, Succeeded, Failed or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When the guest began to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it ended, one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it ended, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Its strategy `Once` is used up.
    #[serde(default)]
    pub once_completed: bool,
    /// What is to follow its end; written before the pod is deleted. Empty: nobody asked for an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub afterwards: Option<Afterwards>,
}

/// What is to follow the end of an instance.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum Afterwards {
    /// Nothing, until something new is wanted.
    StayDown,
    /// Another instance, after the back-off if there is one.
    StartAgain,
}

/// Addresses.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// IPv4 address to reach the machine by.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "primaryIP4"
    )]
    pub primary_ip4: Option<String>,
    /// IPv6 address to reach the machine by.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "primaryIP6"
    )]
    pub primary_ip6: Option<String>,
    /// The guest's host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// What the guest reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    /// What was intended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<NetworkConfigStatus>,
}

/// One interface as the guest sees it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name in the guest.
    pub name: String,
    /// MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_addr: Option<String>,
    /// Addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// What was intended for the network.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigStatus {
    /// Addresses that CNI gave the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// One disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// It can be used.
    #[serde(default)]
    pub attached: bool,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub error: Option<String>,
    /// Virtual size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
}

/// Space.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Virtual sizes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
    /// What lies on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Quantity>,
}

/// Size that the machine has.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HardwareStatus {
    /// Virtual CPUs.
    #[serde(default)]
    pub cpus: u32,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// What the guest says of itself.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestStatus {
    /// Operating system, one word.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "osID")]
    pub os_id: Option<String>,
    /// Operating system for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_name: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Kernel release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// The root disk's birth.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// When the root disk was complete. Never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
}
