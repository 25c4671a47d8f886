//! What the machines of a set are made from, and how the set recognizes them.
//!
//! Invariant: what must differ between machines cannot be set for all of them; what is for privileged
//! users cannot be set at all, since the controller, which is one, creates the machines.
//! Failure: the API server refuses it with the sentence given here.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::VirtualMachineSpec;
use crate::rules::rule;

/// Keys and values as the API server takes them for labels.
const LABELS: &str = "self.all(k, size(k) <= 317 && \
    k.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && \
    self[k].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$'))";

/// Labels of our domains are the controller's.
const LABELS_NOT_OURS: &str =
    "self.all(k, !k.matches('^(([^/]*[.])?vmlet[.]dev/.*|([^/]*[.])?[^/]+[.]protected(/.*)?)$'))";

/// The controller is a privileged user, and the author of the set may not be.
const ANNOTATIONS_NOT_PROTECTED: &str = "self.all(k, !k.matches('^((delete|poweron)[.]check[.]vmlet[.]dev/.*|([^/]*[.])?[^/]+[.]protected(/.*)?)$'))";

const NOT_SUSPENDED: &str = "!has(self.spec.powerState) || self.spec.powerState != 'Suspended'";

const NO_IDENTITY: &str = "!has(self.spec.biosUUID) && !has(self.spec.instanceUUID)";

const NO_OPERATION: &str = "!has(self.spec.currentSnapshotName) && !has(self.spec.nextRestartTime)";

const NO_SOURCE: &str = "!has(self.spec.source)";

const NO_DATA_VOLUMES: &str =
    "!has(self.spec.dataVolumeTemplates) || size(self.spec.dataVolumeTemplates) == 0";

const NO_ADDRESSES: &str = "!has(self.spec.network) || !has(self.spec.network.interfaces) || \
    self.spec.network.interfaces.all(i, !has(i.macAddr) && (!has(i.addresses) || size(i.addresses) == 0))";

/// What machines are made from.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[x_kube(
    validation = rule(NOT_SUSPENDED, "a machine cannot be created Suspended"),
    validation = rule(NO_IDENTITY, "biosUUID and instanceUUID cannot be set in a template: each machine has its \
        own"),
    validation = rule(NO_OPERATION, "currentSnapshotName and nextRestartTime cannot be set in a template"),
    validation = rule(NO_SOURCE, "source cannot be set in a template: the right to clone is that of the author of a \
        machine, and the controller is the author of these"),
    validation = rule(NO_DATA_VOLUMES, "dataVolumeTemplates cannot be set in a template: all machines would \
        have the same volumes; use volumeClaimTemplates"),
    validation = rule(NO_ADDRESSES, "macAddr and addresses cannot be set in a template: all machines would have \
        the same"),
)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaTemplate {
    /// Labels and annotations of the machines. They are set when a machine is made.
    pub metadata: ReplicaMetadata,
    /// Specification of the machines, as in a VirtualMachine. Its power state (`powerState`, `runStrategy`
    /// or `running`, and `paused`) counts when a machine is made; a change of it changes no machine.
    pub spec: VirtualMachineSpec,
}

/// Labels and annotations of the machines of a set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaMetadata {
    /// Labels. The controller adds `vmlet.dev/replica-set`, `vmlet.dev/replica-index` and
    /// `vmlet.dev/template-revision`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(
        validation = rule(LABELS, "labels must have valid keys and values"),
        validation = rule(LABELS_NOT_OURS, "a template cannot set labels of vmlet.dev and of domains that end in \
            .protected"),
    )]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = rule(ANNOTATIONS_NOT_PROTECTED, "a template cannot set annotations in domains that end in \
        .protected, and no checks of power-on and deletion"))]
    pub annotations: BTreeMap<String, String>,
}

/// How a set recognizes its machines.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSelector {
    /// Labels that a machine of the set has, all of them. They are given to the pods of the machines, too.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 8))]
    #[x_kube(validation = rule(LABELS, "labels must have valid keys and values"))]
    pub match_labels: BTreeMap<String, String>,
}

impl ReplicaSelector {
    /// Whether these labels are those of a machine of the set.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut all = self.match_labels.iter();
        !self.match_labels.is_empty() && all.all(|(key, value)| labels.get(key) == Some(value))
    }
}
