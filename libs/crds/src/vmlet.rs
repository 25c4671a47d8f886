//! `Vmlet`: the status of the whole installation.
//!
//! Invariant: one object counts, named `default`; it installs nothing, and its status has all five
//! conditions in every pass.
//! Failure: what cannot be looked at makes `ReconcileComplete` False with the reason.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Overall state of the Vmlet installation.
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
    doc = "Overall state of the Vmlet installation. Only the object named default is used.",
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
    /// If true, a degraded component makes the installation unavailable and not upgradeable.
    #[serde(default)]
    pub strict: bool,
    /// Workloads of Vmlet to observe.
    #[serde(default)]
    pub watch: VmletWatch,
    /// Additional custom resources whose conditions are included, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub components: Vec<ComponentRef>,
}

/// Names of the workloads of Vmlet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmletWatch {
    /// Namespace of the workloads. To be set where Vmlet is installed in another namespace than
    /// `vmlet-system`.
    #[serde(default = "watch::namespace")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: String,
    /// DaemonSet that runs on the nodes.
    #[serde(default = "watch::daemon_set")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub daemon_set: String,
    /// Deployment of the controller.
    #[serde(default = "watch::deployment")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub deployment: String,
    /// ValidatingAdmissionPolicies. Each one must have a binding of the same name.
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

/// Names that `deploy/` uses.
mod watch {
    pub(super) fn namespace() -> String {
        crate::names::NAMESPACE.to_owned()
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
            "vmlet-data-volumes",
            "vmlet-removal",
            "vmlet-removal-allowed",
            "vmlet-pods",
            "vmlet-backups",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

/// A custom resource whose conditions are included.
#[derive(
    Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct ComponentRef {
    /// Group and version, such as `cdi.kubevirt.io/v1beta1`.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// Kind of the object.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Namespace of the object. Empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub namespace: Option<String>,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Observed state of the installation.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmletStatus {
    /// Generation that the controller last observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions by type: `ReconcileComplete`, `Available`, `Progressing`, `Degraded`,
    /// `Upgradeable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Versions whose rollout is complete, by name. `operator` is the version of the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub versions: Vec<ComponentVersion>,
    /// Objects from which the conditions are derived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub related_objects: Vec<RelatedObject>,
    /// Number of nodes by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<VmletNodes>,
    /// Summary for users and alerts, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

impl VmletStatus {
    /// Most entries of `relatedObjects`.
    pub const MOST_RELATED: usize = 64;
    /// Most names in `nodes.bad`, and most entries of `nodes.problems`.
    pub const MOST_BAD_NODES: usize = 10;
    /// Most bytes of the message of a problem.
    pub const LONGEST_PROBLEM: usize = 256;
}

/// A version whose rollout is complete.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentVersion {
    /// Name of the component.
    pub name: String,
    /// Version of the component.
    pub version: String,
}

/// An object from which the conditions are derived.
#[derive(
    Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, KubeSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct RelatedObject {
    /// Group and version.
    #[schemars(length(max = 317))]
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object. Empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Number of nodes of an installation, by state.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmletNodes {
    /// Nodes that are intended to run machines.
    #[serde(default)]
    pub targeted: u32,
    /// Nodes that can run machines.
    #[serde(default)]
    pub ready: u32,
    /// Nodes that cannot run machines because of a problem in Vmlet.
    #[serde(default)]
    pub degraded: u32,
    /// Ready nodes that lack something, such as KVM.
    #[serde(default)]
    pub limited: u32,
    /// Names of the first 10 degraded nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub bad: Vec<String>,
    /// What the first 10 degraded or limited nodes lack, degraded nodes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub problems: Vec<NodeProblem>,
}

/// What a node lacks.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProblem {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Reason, in CamelCase: that of the condition `VmletReady` of the node, or `AgentUnavailable`,
    /// `RuntimeDown`, `DaemonUnavailable`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Details, for users.
    #[schemars(length(max = 256))]
    pub message: String,
}

/// Summary for users and alerts, in one word.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The installation is healthy.
    Healthy,
    /// A change is in progress or not reconciled.
    Warning,
    /// A component is unavailable or degraded.
    Error,
}
