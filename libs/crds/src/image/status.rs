//! The observed state of an image.
//!
//! Invariant: every list has a bound that the controller keeps.
//! Failure: none here; the API server refuses a status that does not fit.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::image_update::{ImageUpdateStatus, ImageVersion};

/// Observed state of an image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineImageStatus {
    /// Format of the disk, such as `qcow2` or `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub type_: Option<String>,
    /// Name of the image in pods, which the runtime of the node resolves; `pvc/` and the name of the
    /// claim if `source.pvc` is set.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "providerItemID"
    )]
    #[schemars(length(max = 2048))]
    pub provider_item_id: Option<String>,
    /// Digest of the content: the digest of the source or, if it has none, the one that the nodes
    /// report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_content_version: Option<String>,
    /// Time at which the first disk was about to be made from this image. After this time the
    /// source is immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_since: Option<Time>,
    /// Nodes that have the image, in alphabetical order; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_names: Vec<String>,
    /// Number of nodes that have the image. Kubelet reports the 50 largest images of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_count: Option<u32>,
    /// State of the pulls that `spec.prePull` requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_pull: Option<PrePullStatus>,
    /// State of the checks that `spec.update` requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<ImageUpdateStatus>,
    /// Versions that checks have found, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 18))]
    pub versions: Vec<ImageVersion>,
    /// What boots the disk, where that is known: `bios` or `efi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Disks in the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<ImageDisk>,
    /// Conditions by type: `Ready`, `Bootable`, and `UpToDate` with `spec.update`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl VirtualMachineImageStatus {
    /// Most names in `nodeNames`.
    pub const MOST_NODES: usize = 32;
}

/// State of the pulls that `spec.prePull` requests.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrePullStatus {
    /// Generation of the image that the controller acted on.
    #[serde(default)]
    pub observed_generation: i64,
    /// Number of nodes that are to have the image: schedulable nodes of the selector whose agent is
    /// available and can pull images, and nodes of the selector that have the image.
    #[serde(default)]
    pub desired: u32,
    /// Number of these nodes that have the image.
    #[serde(default)]
    pub ready: u32,
    /// Number of these nodes that pull the image now.
    #[serde(default)]
    pub pulling: u32,
    /// Number of these nodes whose last pull failed. The controller repeats the pull.
    #[serde(default)]
    pub failed: u32,
    /// Number of other nodes of the selector with an agent: they are unschedulable, do not report,
    /// or cannot pull images on request.
    #[serde(default)]
    pub unavailable: u32,
    /// Last error, with the name of the node; or why no node pulls the image.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub message: String,
    /// Nodes that pulled the image, in alphabetical order; at most 1000. They do not pull this
    /// source again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub nodes: Vec<String>,
}

impl PrePullStatus {
    /// Most names in `nodes`.
    pub const MOST_NODES: usize = 1000;

    /// Whether every desired node has the image.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.desired > 0 && self.ready >= self.desired
    }

    /// Whether no more pull is in progress or about to start before one that failed is repeated.
    #[must_use]
    pub const fn is_stalled(&self) -> bool {
        self.failed > 0 && self.pulling == 0 && self.ready + self.failed >= self.desired
    }
}

/// A disk of an image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageDisk {
    /// Name of the disk.
    pub name: String,
    /// Virtual size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Quantity>,
    /// Size of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
}
