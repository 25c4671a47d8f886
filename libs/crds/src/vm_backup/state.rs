//! The status of a `VirtualMachineBackup`.
//!
//! Invariant: UIDs and the node are written before the node is requested to make the backup; sizes, time and parent are
//! what the node reported.
//! Failure: none of its own.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawRecord;
use crate::vm::PowerState;

/// Observed state of a backup.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineBackupStatus {
    /// UID under which node and target keep the disk that the backup is of.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "diskUID")]
    pub disk_uid: Option<String>,
    /// Node that makes, or made, the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// UID of the claim that has the backup, if one has.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "targetClaimUID"
    )]
    #[schemars(length(max = 64))]
    pub target_claim_uid: Option<String>,
    /// Whether the whole disk is in this backup, or only what has changed since its parent.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub type_: Option<BackupType>,
    /// Why a backup that may be incremental is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub full_reason: String,
    /// Backup that this one builds upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentBackup>,
    /// Time at which the disk was as the backup has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Whether the guest had flushed its file systems; otherwise the disk is as after a cut of the power.
    #[serde(default)]
    pub quiesced: bool,
    /// Power state of the machine at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<BackupStorage>,
    /// SHA-256 of the manifest that the target has of the backup, in 64 hexadecimal digits.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "manifestSHA256"
    )]
    #[schemars(length(max = 64))]
    pub manifest_sha256: Option<String>,
    /// Name of the image that the disk was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1100))]
    pub image: Option<String>,
    /// URL of that image.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "imageURL")]
    #[schemars(length(max = 2048))]
    pub image_url: Option<String>,
    /// Specification, labels and annotations of the machine when the backup was requested from the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::vm::any_object")]
    pub manifest: Option<RawRecord>,
    /// Whether the node keeps no layer of the disk for this backup, since a later one took its place and was deleted with
    /// its data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base_released: bool,
    /// Progress of the backup from 0 to 100, in steps of 10.
    #[serde(default)]
    #[schemars(range(max = 100))]
    pub progress_percent: u32,
    /// Number of attempts in a row that failed.
    #[serde(default)]
    pub failed_attempts: u32,
    /// The last verification that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<BackupVerification>,
    /// Conditions by type: `VirtualMachineBackupCompleted`, `VirtualMachineBackupReady`,
    /// `VirtualMachineBackupVerified`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How much of the disk a backup has.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum BackupType {
    /// The whole disk.
    Full,
    /// What has changed since the parent.
    Incremental,
}

/// The backup that another one builds upon.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentBackup {
    /// Name of its object, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// UID under which the target has it.
    pub uid: String,
}

/// Sizes of a backup.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStorage {
    /// Virtual size of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
    /// Space in the target that this backup uses, without those that it builds upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<Quantity>,
    /// Bytes of the disk that were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Quantity>,
}

/// A verification that ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupVerification {
    /// Time at which it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// `spec.verifyRequest` when it was requested from the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub observed_request: Option<String>,
}
