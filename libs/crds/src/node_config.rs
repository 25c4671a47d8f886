//! `NodeConfig`: settings of the daemon on some nodes.
//!
//! Invariant: objects that match a node are merged by rising priority, then by name; the node's own
//! file and flags win over all of them.
//! Failure: a value that the daemon of a node refuses is reported in `Ready`; the node continues with
//! what it had.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// The accelerator changes these labels: an object that both selects by them and sets it would match, and
/// match no longer, again and again.
const LABELS_OF_THE_ACCELERATOR: &str = "!has(self.nodeSelector) || !has(self.config) || \
     !has(self.config.accelerator) || !self.nodeSelector.exists(key, \
     key == 'node.vmlet.dev/accelerator' || key.startsWith('cpu-model.node.vmlet.dev/'))";
const LABELS_OF_THE_ACCELERATOR_MESSAGE: &str = "an object that sets config.accelerator cannot select \
     nodes by node.vmlet.dev/accelerator or cpu-model.node.vmlet.dev, which follow it";

const ACCELERATOR_LABEL: &str = "node.vmlet.dev/accelerator";
const CPU_MODEL_LABELS: &str = "cpu-model.node.vmlet.dev/";

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
    doc = "Settings of the daemon on selected nodes.",
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(validation = rules::rule(LABELS_OF_THE_ACCELERATOR, LABELS_OF_THE_ACCELERATOR_MESSAGE))]
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
    /// CPU of guests that run by KVM, of pods that do not specify one.
    // Another word, which an earlier schema took, is for the daemon to refuse: the object stays readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CpuModelSetting>")]
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

/// CPU of guests that run by KVM.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
#[serde(rename_all = "kebab-case")]
pub enum CpuModelSetting {
    /// The CPU of the node with all that it can.
    HostPassthrough,
    /// What libvirt makes of the CPU of the node.
    HostModel,
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
    /// Number of nodes with Vmlet that match.
    #[serde(default)]
    pub nodes: u32,
    /// Conditions by type: `Ready`, which is False when a node refuses a value, and Unknown while a
    /// node has not applied the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl NodeConfigSpec {
    /// Whether a node with this name and these labels has the settings.
    #[must_use]
    pub fn matches(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut selector = self.node_selector.iter();
        self.node_name.as_ref().is_none_or(|name| name == node)
            && selector.all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Whether it selects nodes by labels that follow the accelerator.
    fn selects_by_accelerator(&self) -> bool {
        let mut keys = self.node_selector.keys();
        keys.any(|key| key == ACCELERATOR_LABEL || key.starts_with(CPU_MODEL_LABELS))
    }

    /// The settings of a node that matches. An accelerator for nodes that are selected by it, which an
    /// earlier schema took, is none of them.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut all = self.config.given();
        if self.selects_by_accelerator() {
            all.remove("vm.accelerator");
        }
        all
    }
}

impl NodeSettings {
    /// The settings that are given, by the keys and with the values of the daemon's configuration
    /// file.
    #[must_use]
    pub fn given(&self) -> BTreeMap<&'static str, String> {
        let size = |size: &Option<Quantity>| size.as_ref().map(|size| size.0.clone());
        let all = [
            ("log.level", word(self.log_level)),
            ("vm.accelerator", word(self.accelerator)),
            (
                "vm.default_vcpus",
                self.default_vcpus.map(|n| n.to_string()),
            ),
            ("vm.default_memory", size(&self.default_memory)),
            ("vm.cpu_model", self.cpu_model.clone()),
            ("images.protocol", word(self.download_protocol)),
            ("images.max_download", size(&self.max_download)),
            ("images.max_virtual_size", size(&self.max_virtual_size)),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(key, value)| Some((key, value?)))
            .collect()
    }
}

/// How a value of one word is written.
fn word(value: Option<impl Serialize>) -> Option<String> {
    let value = serde_json::to_value(value?).ok()?;
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::all(json!({}), true)]
    #[case::name(json!({ "nodeName": "n1" }), true)]
    #[case::other_name(json!({ "nodeName": "n2" }), false)]
    #[case::labels(json!({ "nodeSelector": { "disk": "ssd", "zone": "a" } }), true)]
    #[case::other_value(json!({ "nodeSelector": { "disk": "ssd", "zone": "b" } }), false)]
    #[case::no_such_label(json!({ "nodeSelector": { "gpu": "" } }), false)]
    #[case::one_of_both(json!({ "nodeName": "n1", "nodeSelector": { "zone": "b" } }), false)]
    #[case::both(json!({ "nodeName": "n1", "nodeSelector": { "zone": "a" } }), true)]
    fn name_and_labels_must_both_match(#[case] spec: Value, #[case] expected: bool) {
        let spec: NodeConfigSpec = serde_json::from_value(spec).unwrap();
        let labels = [("disk", "ssd"), ("zone", "a")];
        let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(spec.matches("n1", &labels.into()), expected);
    }

    #[test]
    fn every_setting_has_a_key_of_the_daemon() {
        let config = json!({
            "logLevel": "debug", "accelerator": "tcg", "downloadProtocol": "http",
            "maxDownload": "5Gi", "maxVirtualSize": "6Gi", "defaultVcpus": 3,
            "defaultMemory": "768Mi", "cpuModel": "host-model",
        });
        let settings: NodeSettings = serde_json::from_value(config.clone()).unwrap();
        assert_eq!(settings.given().len(), config.as_object().unwrap().len());
        assert_eq!(settings.given()["vm.cpu_model"], "host-model");
        assert_eq!(settings.given()["vm.default_memory"], "768Mi");
        assert_eq!(settings.given()["images.protocol"], "http");
        assert!(NodeSettings::default().given().is_empty());
    }

    #[test]
    fn a_cpu_model_of_an_earlier_schema_is_left_to_the_daemon_to_refuse() {
        let spec = json!({ "config": { "cpuModel": "Skylake-Client", "logLevel": "warn" } });
        let spec: NodeConfigSpec = serde_json::from_value(spec).unwrap();
        let settings = spec.settings();
        assert_eq!(settings["vm.cpu_model"], "Skylake-Client");
        assert_eq!(settings["log.level"], "warn");
    }

    #[rstest]
    #[case::accelerator("node.vmlet.dev/accelerator", false)]
    #[case::model("cpu-model.node.vmlet.dev/EPYC", false)]
    #[case::another("zone", true)]
    fn an_accelerator_counts_only_where_the_selector_does_not_follow_it(
        #[case] label: &str,
        #[case] counts: bool,
    ) {
        let spec = json!({
            "nodeSelector": { label: "kvm" }, "config": { "accelerator": "tcg", "logLevel": "warn" },
        });
        let spec: NodeConfigSpec = serde_json::from_value(spec).unwrap();
        let settings = spec.settings();
        assert_eq!(settings.contains_key("vm.accelerator"), counts);
        assert_eq!(settings["log.level"], "warn");
    }
}
