//! The claims that each machine of a set gets.
//!
//! Invariant: a claim belongs to an index of the set, and not to one machine of that index.
//! Failure: a claim that cannot be created shows in `ReplicaFailure`; its machine is not made.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// A claim that each machine of a set gets.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaClaimTemplate {
    /// Name of the claim template. Claims are named `CLAIM-NAME-INDEX`.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub name: String,
    /// StorageClass of the claims. Defaults to that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub storage_class_name: Option<String>,
    /// How the claims can be accessed.
    #[serde(default = "default::once")]
    #[schemars(length(min = 1, max = 4), extend("x-kubernetes-list-type" = "set"))]
    pub access_modes: Vec<ReplicaClaimTemplateAccess>,
    /// Whether a claim is a block device or a file system.
    #[serde(default)]
    pub volume_mode: ReplicaClaimTemplateMode,
    /// Requested size.
    #[x_kube(validation = rules::positive())]
    pub size: Quantity,
}

/// How a claim can be accessed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum ReplicaClaimTemplateAccess {
    /// By one node.
    ReadWriteOnce,
    /// By one pod.
    ReadWriteOncePod,
    /// By many nodes.
    ReadWriteMany,
    /// By many nodes, without writes.
    ReadOnlyMany,
}

/// Whether a claim is a block device or a file system.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum ReplicaClaimTemplateMode {
    /// A file system.
    #[default]
    Filesystem,
    /// A block device.
    Block,
}

/// What happens to the claims of a set.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// When the set deletes a machine because `replicas` became smaller.
    #[serde(default)]
    pub when_scaled: RetentionPolicy,
    /// When the set is deleted.
    #[serde(default)]
    pub when_deleted: RetentionPolicy,
}

/// Whether a claim is kept.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum RetentionPolicy {
    /// The claim stays, and the next machine of its index uses it.
    #[default]
    Retain,
    /// The claim is deleted, and with it what it holds.
    Delete,
}

/// Defaults that the API server sets.
mod default {
    use super::ReplicaClaimTemplateAccess;

    pub(super) fn once() -> Vec<ReplicaClaimTemplateAccess> {
        vec![ReplicaClaimTemplateAccess::ReadWriteOnce]
    }
}
