//! Disks beyond the root disk, and data volumes made with the machine.
//!
//! Invariant: names are unique in the machine.
//! Failure: a claim that is missing shows as `ErrorPvcNotFound`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// One more disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule("has(self.persistentVolumeClaim)", "a volume needs persistentVolumeClaim"))]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name, unique in the machine.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub name: String,
    /// The claim behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<VolumeClaim>,
}

/// A PersistentVolumeClaim in the machine's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaim {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub claim_name: String,
    /// Attach read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Use this block volume as the root disk. At most one volume may say so.
    #[serde(default)]
    pub root: bool,
}

/// A CDI DataVolume that is created with the machine, owned by it and deleted with it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeTemplate {
    /// Its name; a volume of the machine must name a claim of the same name.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
    /// `spec` of the DataVolume, as `cdi.kubevirt.io/v1beta1` defines it.
    #[schemars(schema_with = "any_object")]
    pub spec: serde_json::Value,
}

pub(super) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
