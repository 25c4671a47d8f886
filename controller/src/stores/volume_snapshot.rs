//! The `VolumeSnapshot` of the storage systems, reduced to the fields that are read and written here.
//!
//! Invariant: the snapshot controller of the cluster owns the kind; only objects that this controller made are
//! watched.
//! Failure: as long as the API is not served, the store is empty and ready.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// What it is a snapshot of.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    plural = "volumesnapshots",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    status = "VolumeSnapshotStatus"
)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    /// The claim.
    pub source: VolumeSnapshotSource,
    /// Its class; absent: the default of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// What a snapshot is taken of.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSource {
    /// A claim of the same namespace; absent: a snapshot that existed before its object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
}

/// What the storage system reports.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    /// Time at which it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Whether a volume can be made from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// Least size of such a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<VolumeSnapshotError>,
}

/// An error of the storage system.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct VolumeSnapshotError {
    /// Its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
