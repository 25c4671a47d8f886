//! `Vmlet`: how the whole installation stands.
//!
//! Invariant: one object counts, named `default`; it installs nothing, and its status has all five
//! conditions in every pass.
//! Failure: what cannot be looked at makes `ReconcileComplete` False with the reason.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How the whole installation stands.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "Vmlet",
    plural = "vmlets",
    derive = "PartialEq",
    derive = "Default",
    status = "VmletStatus",
    category = "vmlet-all",
    doc = "How the whole installation stands. The object named default counts.",
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Available\")].status"
    ),
    printcolumn(
        name = "Progressing",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Progressing\")].status"
    ),
    printcolumn(
        name = "Degraded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Degraded\")].status"
    ),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VmletSpec {
    /// A degraded component makes the installation unavailable and not upgradeable.
    #[serde(default)]
    pub strict: bool,
    /// Our own workloads.
    #[serde(default)]
    pub watch: VmletWatch,
    /// Further custom resources whose conditions count, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub components: Vec<ComponentRef>,
}

/// Our own workloads, by name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmletWatch {
    /// Namespace of the workloads.
    #[serde(default = "watch::namespace")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: String,
    /// DaemonSet of the node side.
    #[serde(default = "watch::daemon_set")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub daemon_set: String,
    /// Deployment of the controller.
    #[serde(default = "watch::deployment")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub deployment: String,
    /// ValidatingAdmissionPolicies; each has a binding of the same name.
    #[serde(default = "watch::admission_policies")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub admission_policies: Vec<String>,
}

impl Default for VmletWatch {
    fn default() -> Self {
        Self {
            namespace: watch::namespace(),
            daemon_set: watch::daemon_set(),
            deployment: watch::deployment(),
            admission_policies: watch::admission_policies(),
        }
    }
}

/// Names as `deploy/` has them.
mod watch {
    pub(super) fn namespace() -> String {
        "vmlet-system".to_owned()
    }

    pub(super) fn daemon_set() -> String {
        "vmlet-node".to_owned()
    }

    pub(super) fn deployment() -> String {
        "vmlet-controller".to_owned()
    }

    pub(super) fn admission_policies() -> Vec<String> {
        [
            "vmlet-protected-metadata",
            "vmlet-machines",
            "vmlet-internal",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

/// A custom resource whose conditions count.
#[derive(
    Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct ComponentRef {
    /// Group and version, such as `cdi.kubevirt.io/v1beta1`.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// Its kind.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Its namespace; empty: cluster-scoped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How the whole installation stands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmletStatus {
    /// Generation that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `ReconcileComplete`, `Available`, `Progressing`, `Degraded`, `Upgradeable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Versions that were fully rolled out, by name; `operator` is the controller's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub versions: Vec<ComponentVersion>,
    /// Objects that the conditions are made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub related_objects: Vec<RelatedObject>,
    /// The nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<VmletNodes>,
    /// One word for people and alerts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// A version that was fully rolled out.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentVersion {
    /// What has it.
    pub name: String,
    /// The version.
    pub version: String,
}

/// An object that the conditions are made of.
#[derive(
    Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct RelatedObject {
    /// Group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty: cluster-scoped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// The nodes of an installation.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmletNodes {
    /// Nodes that should run machines.
    #[serde(default)]
    pub targeted: u32,
    /// Nodes that can.
    #[serde(default)]
    pub ready: u32,
    /// Nodes that cannot, through our fault.
    #[serde(default)]
    pub degraded: u32,
    /// Names of the first 10 of the degraded ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub bad: Vec<String>,
}

/// One word for people and alerts.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// All is well.
    Healthy,
    /// Something is under way or not reconciled.
    Warning,
    /// Something is unavailable or degraded.
    Error,
}
