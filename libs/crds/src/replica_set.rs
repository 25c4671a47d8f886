//! `VirtualMachineReplicaSet`: a number of machines that are made from one template.
//!
//! Invariant: a machine of the set is named `NAME-INDEX`, so that each index has at most one machine, and
//! claims of an index keep their names.
//! Failure: a template that the API server takes here and refuses as a machine shows in the condition
//! `ReplicaFailure`.

mod claims;
mod template;
mod update;

pub use claims::{
    ClaimRetention, ReplicaClaimTemplate, ReplicaClaimTemplateAccess, ReplicaClaimTemplateMode,
    RetentionPolicy,
};
pub use template::{ReplicaMetadata, ReplicaSelector, ReplicaTemplate};
pub use update::{ReplicaUpdateStrategy, ReplicaUpdateType, RollingUpdate};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::rules::{edit, rule};

/// A machine's name has at most 63 characters: of these a hyphen and an index below 10,000.
const NAME: &str = "size(self.metadata.name) <= 58";

/// Each claim template is the claim of a volume: one that no machine uses would only take space.
const CLAIMS_USED: &str = "!has(self.volumeClaimTemplates) || self.volumeClaimTemplates.all(t, \
    has(self.template.spec.volumes) && self.template.spec.volumes.exists(v, \
    has(v.persistentVolumeClaim) && v.persistentVolumeClaim.claimName == t.name))";

/// One claim cannot be the root disk of several machines.
const ROOT_OF_ONE: &str = "!has(self.template.spec.volumes) || self.template.spec.volumes.all(v, \
    !has(v.persistentVolumeClaim) || !v.persistentVolumeClaim.root || (has(self.volumeClaimTemplates) && \
    self.volumeClaimTemplates.exists(t, t.name == v.persistentVolumeClaim.claimName)))";

const SELECTS_ITS_OWN: &str = "has(self.template.metadata.labels) && self.selector.matchLabels.all(k, \
    k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k])";

/// The claims of an index that exists only during an update would be left behind.
const NO_SURGE_WITH_CLAIMS: &str = "!has(self.volumeClaimTemplates) || size(self.volumeClaimTemplates) == 0 || \
    !has(self.updateStrategy) || !has(self.updateStrategy.rollingUpdate) || \
    string(self.updateStrategy.rollingUpdate.maxSurge) in ['0', '0%']";

/// Made with the set, and not changed with it: existing claims stay as they are.
const CLAIMS_FIXED: &str = "has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) && \
    (!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)";

/// A number of machines that are made from one template.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineReplicaSet",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineReplicaSetStatus",
    shortname = "vmrs",
    category = "all",
    category = "vmlet-all",
    doc = "A number of machines that are made from one template.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    validation = rule(NAME, "the name of a replica set has at most 58 characters").field_path(".metadata"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = rule(SELECTS_ITS_OWN, "selector.matchLabels must be labels of template.metadata"),
    validation = rule(CLAIMS_USED, "each of volumeClaimTemplates must be the claim of one of \
        template.spec.volumes"),
    validation = rule(ROOT_OF_ONE, "a volume with root: true must have one of volumeClaimTemplates as its \
        claim: several machines cannot have the same root disk"),
    validation = rule(NO_SURGE_WITH_CLAIMS, "maxSurge must be 0 for a set with volumeClaimTemplates: claims \
        of additional machines would be left behind"),
    validation = edit(CLAIMS_FIXED, "volumeClaimTemplates is immutable: make another set for other claims"),
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineReplicaSetSpec {
    /// Number of machines. Their names are `NAME-0`, `NAME-1` and so on; when the number becomes smaller,
    /// the machines with the highest indices are deleted.
    #[serde(default = "default::one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: u32,
    /// Labels by which the set recognizes its machines. Immutable.
    #[x_kube(validation = edit("self == oldSelf", "selector is immutable: make another set"))]
    pub selector: ReplicaSelector,
    /// What machines are made from.
    pub template: ReplicaTemplate,
    /// How machines that were made from an earlier template are replaced.
    #[serde(default)]
    pub update_strategy: ReplicaUpdateStrategy,
    /// Seconds for which a machine must be ready before it counts as available.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86_400))]
    pub min_ready_seconds: u32,
    /// Claims that each machine gets, named `CLAIM-NAME-INDEX`. A volume of the template with the name
    /// of a claim template as its claim uses it. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volume_claim_templates: Vec<ReplicaClaimTemplate>,
    /// What happens to these claims.
    #[serde(default)]
    pub persistent_volume_claim_retention_policy: ClaimRetention,
}

impl VirtualMachineReplicaSetSpec {
    /// Most machines, and most additional machines during an update.
    pub const MOST: u32 = 1000;
}

/// Observed state of a set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineReplicaSetStatus {
    /// Machines of the set, less those that are being deleted.
    #[serde(default)]
    pub replicas: u32,
    /// Of these, those with `Ready` True.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Of these, those that have been ready for `minReadySeconds`.
    #[serde(default)]
    pub available_replicas: u32,
    /// Machines that were made from the present template.
    #[serde(default)]
    pub updated_replicas: u32,
    /// `metadata.generation` that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Revision that all machines had last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub current_revision: Option<String>,
    /// Revision of the present template. Machines have theirs in the label `vmlet.dev/template-revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub update_revision: Option<String>,
    /// Hash of the template; `updateRevision` stays while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub template_hash: Option<String>,
    /// `spec.selector` as text, for HorizontalPodAutoscalers. The pods of machines have these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub selector: Option<String>,
    /// Conditions by type: `Ready`, `ReplicaFailure`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Defaults that the API server sets.
mod default {
    pub(super) const fn one() -> u32 {
        1
    }
}
