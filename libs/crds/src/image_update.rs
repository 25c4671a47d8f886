//! Images that follow a tag, or a file of a web server: when nodes check it, which version new machines use,
//! and what is known of the versions.
//!
//! Invariant: a version is the digest of a manifest, or of the file; it never changes. The newest one is the
//! first of the list.
//! Failure: a check that failed, or a version that nodes cannot pull, shows in the condition
//! `UpToDate`; new machines use the former version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;
use crate::{InspectedImage, PrePullStatus};

/// How an image follows its tag, or its file. Machines that exist never change.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageUpdate {
    /// Times of the checks in UTC: the five fields of cron, such as `30 2 * * *`, or a word such as
    /// `@daily`. There are at least 5 minutes between two checks. If empty, a node makes one check
    /// and further ones on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = rules::SCHEDULE))]
    pub schedule: Option<String>,
    /// With `source.http`: URL of a file of checksums that the publisher writes with each version, such as `SHA256SUMS`.
    /// It has a line with the name at the end of the URL of the image and its SHA-256 or SHA-512. Nodes request it with
    /// the `tlsSecret` of the image.
    #[serde(
        rename = "checksumURL",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 8, max = 2048))]
    #[x_kube(validation = rules::web_url())]
    pub checksum_url: Option<String>,
    /// Any text, such as the present time. Another text than before requests a check at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub check_request: Option<String>,
    /// Version that new machines use in place of the newest one: a digest of `status.versions`. Checks
    /// and pulls continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 135), regex(pattern = rules::VERSION))]
    pub digest: Option<String>,
    /// Number of former versions in `status.versions`.
    #[serde(default = "default::three")]
    #[schemars(range(min = 0, max = 16))]
    pub retain: u32,
}

/// Observed state of an image that follows a tag or a file.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageUpdateStatus {
    /// Reference, or URL, that the versions are of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub reference: String,
    /// Digest of the version that new machines use; empty before the first check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 135), regex(pattern = rules::VERSION))]
    pub current: Option<String>,
    /// Time of the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_check_time: Option<Time>,
    /// `spec.update.checkRequest` at the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub observed_check_request: Option<String>,
    /// `spec.update.checksumURL` at the last check.
    #[serde(
        rename = "observedChecksumURL",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 2048))]
    pub observed_checksum_url: Option<String>,
    /// Number of checks in a row that failed.
    #[serde(default)]
    pub failed_checks: u32,
    /// Why the last check failed, with the name of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub message: String,
    /// Pulls of the newest version by the nodes that are to have it before new machines use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulls: Option<PrePullStatus>,
}

/// A version of an image that follows a tag or a file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageVersion {
    /// Digest of the manifest, or of the file of a web server.
    #[schemars(length(min = 71, max = 135), regex(pattern = rules::VERSION))]
    pub digest: String,
    /// Whether new machines may use it.
    pub state: ImageVersionState,
    /// Time of the check that found it; of the last one, if the source went back to it.
    pub found_time: Time,
    /// Number of nodes that had it when it became `Ready`.
    #[serde(default)]
    pub ready_nodes: u32,
    /// Properties of the disk in it.
    pub image: InspectedImage,
}

impl ImageVersion {
    /// Most versions in a status: the retained ones, the newest one, and a pinned one.
    pub const MOST: usize = 18;
}

/// Whether new machines may use a version.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum ImageVersionState {
    /// Nodes pull it.
    Pulling,
    /// New machines may use it.
    Ready,
}

/// Defaults that the API server sets.
mod default {
    pub(super) const fn three() -> u32 {
        3
    }
}
