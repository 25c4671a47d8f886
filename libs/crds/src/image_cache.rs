//! `VirtualMachineImageCache`: which nodes have an image's files.
//!
//! Invariant: a location is named by node, store and format together; the controller writes all of
//! it, from what the tasks and the kubelets of the nodes report.
//! Failure: a location that failed has `Ready` False with the reason; others are not touched.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
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
        controller.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image.name"),
    printcolumn(
        name = "Namespace of image",
        type_ = "string",
        json_path = ".spec.image.namespace"
    ),
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
#[x_kube(validation = immutable("providerID"), validation = immutable("image"))]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineImageCacheSpec {
    /// Image object whose files these are. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<CachedImage>,
    /// Name of the image in pods. Immutable.
    #[serde(rename = "providerID")]
    #[schemars(length(min = 1, max = 2048))]
    pub provider_id: String,
    /// Desired digest; empty as long as none is known.
    #[schemars(length(max = 135))]
    pub provider_version: String,
    /// Locations that need the files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node", "store", "format"]))]
    #[schemars(length(max = 1000))]
    pub locations: Vec<CacheLocation>,
}

impl VirtualMachineImageCacheSpec {
    /// Most locations of an image.
    pub const MOST_LOCATIONS: usize = 1000;
    /// Only store of a node.
    pub const STORE: &str = "default";
}

/// An image object.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedImage {
    /// Kind of the image.
    #[schemars(length(max = 63), extend("enum" = ["VirtualMachineImage", "ClusterVirtualMachineImage"]))]
    pub kind: String,
    /// Namespace of the image; absent for an image of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: Option<String>,
    /// Name of the image.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
    /// UID of the image.
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub uid: String,
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
    #[schemars(extend("x-kubernetes-list-type" = "atomic"), length(max = 1000))]
    pub locations: Vec<CacheLocationStatus>,
    /// Metadata of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<CacheMetadata>,
    /// Conditions by type: `VirtualMachineImageCacheHardwareReady`,
    /// `VirtualMachineImageCacheProviderReady`, `VirtualMachineImageCacheFilesReady` and `Ready`.
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
    /// Files at the location; empty as long as their digest is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CachedFile>,
    /// Time since which no machine and no pre-pull needs the files. A location is dropped a day
    /// later; the node then has the files as long as its own settings allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_since: Option<Time>,
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
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheMetadata {
    /// Format of the disk, such as `qcow2` or `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub type_: Option<String>,
    /// Virtual size of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_size: Option<Quantity>,
    /// What boots the disk, where that is known: `bios` or `efi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Digest of the image from which the metadata was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_version: Option<String>,
}
