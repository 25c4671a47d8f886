//! `VirtualMachineImageCache`: which nodes have an image's files.
//!
//! Invariant: a location is named by node, store and format together; agents write what they have, the
//! controller what it wants.
//! Failure: a location that failed has `Ready` False with the reason; others are not touched.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{self, immutable};

/// An image's files on the nodes that need them. Internal, in the controller's namespace.
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
    doc = "An image's files on the nodes that need them. Internal, in the controller's namespace. No controller acts on it yet.",
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
    /// The image's name as pods spell it. Immutable.
    #[serde(rename = "providerID")]
    #[schemars(length(min = 1, max = 2048))]
    pub provider_id: String,
    /// Digest that is wanted.
    #[schemars(length(max = 128))]
    pub provider_version: String,
    /// Where the files are wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node", "store", "format"]))]
    #[schemars(length(max = 1000))]
    pub locations: Vec<CacheLocation>,
}

/// Where an image's files are wanted.
#[derive(
    Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct CacheLocation {
    /// Name of the node.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub node: String,
    /// Store on the node; `default` unless it has several.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub store: String,
    /// Format of the files: `qcow2` or `raw`.
    #[schemars(length(max = 16), extend("enum" = ["qcow2", "raw"]))]
    pub format: String,
}

/// What is where.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineImageCacheStatus {
    /// What each location has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node", "store", "format"]))]
    #[schemars(length(max = 1000))]
    pub locations: Vec<CacheLocationStatus>,
    /// What the image says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<CacheMetadata>,
    /// Details, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a location has.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheLocationStatus {
    /// Name of the node.
    pub node: String,
    /// Store on the node.
    pub store: String,
    /// Format of the files.
    pub format: String,
    /// The files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CachedFile>,
    /// Details, by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// One file in a node's store.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedFile {
    /// Its digest in the node's store.
    pub id: String,
    /// What it is.
    #[serde(rename = "type")]
    pub type_: CachedFileType,
    /// Its original name, by which disks are told apart.
    pub name: String,
}

/// What a cached file is.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum CachedFileType {
    /// A disk.
    Disk,
    /// Anything else, such as firmware variables.
    Other,
}

/// What an image says of itself.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheMetadata {
    /// ConfigMap that holds it, in the cache's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<String>,
    /// Digest that it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_version: Option<String>,
}
