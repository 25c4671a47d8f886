//! CDI's `DataVolume`, reduced to the fields that are read here.
//!
//! Invariant: CDI owns the kind; `spec` is passed on as it is, and never kept.
//! Failure: as long as the API is not served, the store is empty and ready.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// What the volume is to be filled with.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "DataVolume",
    plural = "datavolumes",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    status = "DataVolumeStatus"
)]
pub struct DataVolumeSpec {
    /// As the template has it. Not read: CDI's fields are many, and nothing depends on them.
    #[serde(flatten, skip_deserializing)]
    pub any: serde_json::Map<String, serde_json::Value>,
}

/// How far it is.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVolumeStatus {
    /// `Succeeded` when it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `50.00%`, or `N/A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// The claim behind it; absent: the one of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
}
