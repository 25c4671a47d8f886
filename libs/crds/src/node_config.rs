//! `NodeConfig`: settings of the daemon on some nodes.
//!
//! Invariant: objects that match a node are merged by rising priority, then by name; the node's own
//! file and flags win over all of them.
//! Failure: a value that the daemon refuses is reported in `Ready`; the node continues with what it
//! had.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// Settings of the daemon on selected nodes.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "NodeConfig",
    derive = "PartialEq",
    derive = "Default",
    status = "NodeConfigStatus",
    shortname = "vmnc",
    category = "vmlet-all",
    doc = "Settings of the daemon on selected nodes. Not implemented by any controller yet.",
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfigSpec {
    /// Name of the node. If `nodeSelector` is also set, both must match. If neither is set, all
    /// nodes match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub node_name: Option<String>,
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// If several objects match a node, the one with the highest priority wins.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Settings of the daemon. Empty settings are left to other objects.
    #[serde(default)]
    pub config: NodeSettings,
}

/// Settings of the daemon.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSettings {
    /// Minimum severity of log messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
    /// How guests are executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<AcceleratorSetting>,
    /// Scheme of image names that contain none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_protocol: Option<DownloadProtocol>,
    /// Maximum size of a downloaded image file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::positive())]
    pub max_download: Option<Quantity>,
    /// Maximum virtual size of a disk in an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::positive())]
    pub max_virtual_size: Option<Quantity>,
    /// Number of virtual CPUs of pods that do not specify one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub default_vcpus: Option<u32>,
    /// Memory of pods that do not specify it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::mebibytes(), validation = rules::between("32Mi", "16Ti"))]
    pub default_memory: Option<Quantity>,
    /// CPU model, `host-passthrough` or `host-model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::WORD))]
    pub cpu_model: Option<String>,
}

/// Minimum severity of log messages.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each value is its own description")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How guests are executed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorSetting {
    /// Hardware virtualization if a guest runs with it, otherwise software emulation.
    Auto,
    /// Hardware virtualization.
    Kvm,
    /// Software emulation.
    Tcg,
}

/// Scheme of image names that contain none.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each value is its own description")]
pub enum DownloadProtocol {
    Http,
    Https,
}

/// Observed state of the settings.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfigStatus {
    /// Generation that the controller last observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of nodes that match.
    #[serde(default)]
    pub nodes: u32,
    /// Conditions by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
