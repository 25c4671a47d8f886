//! `VirtualMachineImageCache`: which nodes have an image's files.
//!
//! Invariant: a location is named by node, store and format together; agents write what they have,
//! the controller what it wants.
//! Failure: a location that failed has `Ready` False with the reason; others are not touched.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{self, immutable};

/// Files of an image on the nodes that need them. Internal; in the namespace of the controller.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineImageCache",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineImageCacheStatus",
    shortname = "vmicache",
    category = "vmlet-all",
    doc = "Files of an image on the nodes that need them. Internal; in the namespace of the \
        controller. Not implemented by any controller yet.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.providerID"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(validation = immutable("providerID"))]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineImageCacheSpec {
    /// Name of the image in pods. Immutable.
    #[serde(rename = "providerID")]
    #[schemars(length(min = 1, max = 2048))]
    pub provider_id: String,
    /// Desired digest.
    #[schemars(length(max = 128))]
    pub provider_version: String,
    /// Locations that need the files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node", "store", "format"]))]
    #[schemars(length(max = 1000))]
    pub locations: Vec<CacheLocation>,
}

/// A location that needs the files of an image.
#[derive(
    Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct CacheLocation {
    /// Name of the node.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub node: String,
    /// Store on the node. Defaults to `default`.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub store: String,
    /// Format of the files: `qcow2` or `raw`.
    #[schemars(length(max = 16), extend("enum" = ["qcow2", "raw"]))]
    pub format: String,
}

/// Observed state of an image cache.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineImageCacheStatus {
    /// State of each location.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node", "store", "format"]))]
    #[schemars(length(max = 1000))]
    pub locations: Vec<CacheLocationStatus>,
    /// Metadata of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<CacheMetadata>,
    /// Conditions by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Observed state of a location.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheLocationStatus {
    /// Name of the node.
    pub node: String,
    /// Store on the node.
    pub store: String,
    /// Format of the files.
    pub format: String,
    /// Files at the location.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CachedFile>,
    /// Conditions by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A file in the store of a node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedFile {
    /// Digest of the file in the store.
    pub id: String,
    /// Type of the file.
    #[serde(rename = "type")]
    pub type_: CachedFileType,
    /// Original name, which distinguishes the disks.
    pub name: String,
}

/// Type of a cached file.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum CachedFileType {
    /// A disk.
    Disk,
    /// Anything else, such as firmware variables.
    Other,
}

/// Metadata of an image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheMetadata {
    /// ConfigMap that contains the metadata, in the namespace of the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<String>,
    /// Digest of the image from which the metadata was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_version: Option<String>,
}
