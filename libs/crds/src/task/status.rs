//! What a node reports of a task.
//!
//! Invariant: a state that is final does not change any more.
//! Failure: none of its own; that of the task is `Error` with a message.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Observed state of a task.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineTaskStatus {
    /// State of the task. Empty if the agent has not seen the task yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Error: whether a new task may succeed.
    #[serde(default)]
    pub transient: bool,
    /// What failed, and how to correct it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub message: String,
    /// Progress from 0 to 100.
    #[serde(default)]
    #[schemars(range(max = 100))]
    pub progress_percent: u32,
    /// Time at which the node started the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the task ended. The object is kept for 10 minutes after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// InspectImage: properties of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<InspectedImage>,
    /// Snapshot: properties of the snapshot. Freeze: since when the guest is frozen, before the task ends, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<TakenSnapshot>,
    /// Backup: properties of the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<TakenBackup>,
}

/// Properties of a backup that a node has made.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TakenBackup {
    /// Whether it has the whole disk.
    #[serde(default)]
    pub full: bool,
    /// Why it has the whole disk, if it has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub full_reason: String,
    /// UID of the VirtualMachineBackup that it builds upon.
    #[serde(rename = "parentUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub parent_uid: Option<String>,
    /// Space in the target that this backup uses, without those that it builds upon, in bytes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub stored_bytes: i64,
    /// Bytes of the disk that were read.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub read_bytes: i64,
    /// Virtual size of the disk, in bytes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub virtual_bytes: i64,
    /// SHA-256 of its manifest in the target, in 64 hexadecimal digits.
    #[serde(
        rename = "manifestSHA256",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 64))]
    pub manifest_sha256: Option<String>,
    /// Whether the guest had frozen its file systems.
    #[serde(default)]
    pub quiesced: bool,
    /// Whether the machine ran.
    #[serde(default)]
    pub running: bool,
    /// Time at which the disk was as the backup has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_time: Option<Time>,
}

/// Properties of a snapshot that a node has taken, or of a freeze.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TakenSnapshot {
    /// Whether the guest had frozen its file systems. Freeze: whether they were frozen until the end.
    #[serde(default)]
    pub quiesced: bool,
    /// Whether the machine ran.
    #[serde(default)]
    pub running: bool,
    /// Virtual size of the disk at the time of the snapshot, in bytes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub virtual_bytes: i64,
    /// Space that the node uses for this snapshot alone, without its parents and the image, in
    /// bytes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub used_bytes: i64,
    /// Length of the memory of the guest in the snapshot, in bytes; 0 if it has none. `usedBytes` contains it.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub memory_bytes: i64,
    /// Time at which the node took the snapshot. Freeze: time since which the guest is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_time: Option<Time>,
}

/// Properties that the first bytes of an image show.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InspectedImage {
    /// Format of the image: `qcow2` or `raw`; empty if only a pull shows it.
    pub format: String,
    /// Virtual size of the disk, in bytes; 0 if unknown.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub virtual_bytes: i64,
    /// Size of the file, in bytes; 0 if unknown.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub file_bytes: i64,
    /// Whether a BIOS boots from the disk; true where that is not known.
    #[serde(default)]
    pub bootable: bool,
    /// What boots from the disk, where that is known: `bios` or `efi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Digest of the manifest or index that the name means in a registry, or the one that the file of checksums has for
    /// it; else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 135), regex(pattern = rules::VERSION))]
    pub digest: Option<String>,
}

/// State of a task.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum TaskState {
    /// The task waits for other tasks on its node.
    Queued,
    /// The task runs.
    Running,
    /// The task succeeded.
    Success,
    /// The task failed.
    Error,
    /// The task was cancelled before it finished.
    Cancelled,
}

impl TaskState {
    /// Whether the state is final.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Error | Self::Cancelled)
    }
}
