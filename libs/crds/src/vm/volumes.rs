//! Disks beyond the root disk, and data volumes made with the machine.
//!
//! Invariant: names are unique in the machine.
//! Failure: a claim that is missing shows as `ErrorPvcNotFound`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{RawObject, rules};

/// An additional disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule("has(self.persistentVolumeClaim)", "a volume needs \
    persistentVolumeClaim"))]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name of the disk, unique in the machine.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub name: String,
    /// PersistentVolumeClaim that provides the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<VolumeClaim>,
}

/// A PersistentVolumeClaim in the machine's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rules::rule("!(has(self.mountPath) && self.root)", "a root disk has no \
    mountPath"))]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaim {
    /// Name of the claim.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub claim_name: String,
    /// Attaches the disk read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Uses this volume as the root disk. At most one volume can set this.
    #[serde(default)]
    pub root: bool,
    /// Mounts the file system of the claim at this absolute path of the guest, by virtiofs. Without
    /// it, the claim is a disk: the block device, or the file `disk.img` of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 512), regex(pattern = "^(/[^/:]+)+$"))]
    pub mount_path: Option<String>,
}

/// A CDI DataVolume that is created with the machine, owned by it and deleted with it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeTemplate {
    /// Name of the DataVolume. A volume of the machine must reference the claim of this name.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
    /// `spec` of the DataVolume, as `cdi.kubevirt.io/v1beta1` defines it; at most 16 KiB as JSON.
    #[schemars(schema_with = "any_object")]
    pub spec: RawObject,
}

/// Most fields of an object that others define. What is below them has no bound but the API server's for
/// the whole object, about 1.5 MiB: a rule in CEL sees no field that the schema does not name, and a
/// schema that named them would drop those of a later version of CDI. Readers have bounds of their own:
/// [`RawObject`] of what is kept, and the controller's pages of what is read at a time.
const FIELDS: u32 = 32;

pub(crate) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "maxProperties": FIELDS, "x-kubernetes-preserve-unknown-fields": true,
    })
}
