//! What is kept of a machine for the loss of the cluster's data: the record on its object, and the
//! manifest beside its disk.
//!
//! Invariant: both name Secrets, and have no value of one. What is read is bounded and spelt as a
//! node or an API server spells it, no matter who wrote it.
//! Failure: [`Error`] names the field.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::vm::VirtualMachineStatus;
use crate::{PowerState, names};

/// Longest record in bytes.
pub const RECORD_LIMIT: usize = 8192;
/// Longest manifest in bytes.
pub const MANIFEST_LIMIT: usize = 64 << 10;
/// Version of manifests that this version writes; it reads no later one.
pub const MANIFEST_VERSION: u32 = 1;
/// Annotations that are not kept: what a client of its own needs, and what belongs to one object.
const NOT_KEPT: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    names::UPGRADED_TO_BUILD,
    names::UPGRADED_TO_SCHEMA,
    names::UPGRADED_TO_FEATURE,
    names::UNPAUSE_REQUEST,
];

/// Which disk a machine has, and what its guest knows it by.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskRecord {
    /// Node that has the disk.
    pub node: String,
    /// UID under which the node has the disk.
    pub disk: String,
    /// BIOS UUID of the machine.
    #[serde(rename = "biosUUID")]
    pub bios_uuid: String,
    /// Instance UUID of the machine.
    #[serde(rename = "instanceUUID")]
    pub instance_uuid: String,
    /// Image that the disk was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// URL of that image, if its name is made of one.
    #[serde(rename = "imageURL", skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// Machine type that the guest ran with last. On the object of a machine it is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Memory was saved beside the disk. On the object of a machine it is unset.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
}

/// A machine, as the API server had it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineManifest {
    /// Version of this format.
    pub version: u32,
    /// UID that the machine had.
    pub uid: String,
    /// Namespace of the machine.
    pub namespace: String,
    /// Name of the machine.
    pub name: String,
    /// Labels of the machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Specification of the machine: it names the class, the image, and the Secrets and claims.
    pub spec: Value,
    /// The disk.
    pub record: DiskRecord,
}

/// A text that is no record or manifest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is longer than one may be.
    #[error("it has {0} bytes, and at most {1} are read")]
    TooLong(usize, usize),
    /// It is not the JSON that it should be.
    #[error("it is not the JSON of a machine")]
    Json(#[source] serde_json::Error),
    /// A field has a value that it cannot have.
    #[error("the field {0} has a value that it cannot have")]
    Field(&'static str),
    /// A later version of Vmlet wrote it.
    #[error("it has version {0}, and this program reads version {MANIFEST_VERSION}: upgrade it")]
    Later(u32),
}

impl DiskRecord {
    /// What the object of a machine says of its disk on a node; `None` while it has none there.
    #[must_use]
    pub fn of_machine(metadata: &ObjectMeta, status: &VirtualMachineStatus) -> Option<Self> {
        let is_on_claim = status
            .unique_id
            .as_ref()
            .is_none_or(|id| id.starts_with("pvc/"));
        if is_on_claim {
            return None;
        }
        let disk = status.disk_uid.clone().or_else(|| metadata.uid.clone())?;
        Some(Self {
            node: status.node_name.clone()?,
            disk,
            bios_uuid: status.bios_uuid.clone()?,
            instance_uuid: status.instance_uuid.clone()?,
            image: status.image.clone(),
            image_url: status.image_url.clone(),
            machine_type: None,
            suspended: false,
        })
    }

    /// Reads an annotation.
    ///
    /// # Errors
    ///
    /// [`Error`] where it is no record.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.len() > RECORD_LIMIT {
            return Err(Error::TooLong(text.len(), RECORD_LIMIT));
        }
        let record: Self = serde_json::from_str(text).map_err(Error::Json)?;
        record.check()?;
        Ok(record)
    }

    /// The text of an annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and a boolean: nothing that JSON could refuse.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn check(&self) -> Result<(), Error> {
        let is_plain = |text: &str, most: usize| {
            let allowed =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            !text.is_empty() && text.len() <= most && text.chars().all(allowed)
        };
        let is_uuid = |text: &str| text.len() == 36 && is_plain(text, 36);
        let is_short = |text: &Option<String>, most: usize| {
            let text = text.as_deref().unwrap_or("x");
            let is_printable = text.chars().all(|c| c.is_ascii_graphic());
            !text.is_empty() && text.len() <= most && is_printable
        };
        let fields = [
            ("node", is_plain(&self.node, 253)),
            ("disk", is_plain(&self.disk, 64)),
            ("biosUUID", is_uuid(&self.bios_uuid)),
            ("instanceUUID", is_uuid(&self.instance_uuid)),
            ("image", is_short(&self.image, 1100)),
            ("imageURL", is_short(&self.image_url, 2048)),
            ("machineType", is_short(&self.machine_type, 64)),
        ];
        match fields.into_iter().find(|(_, is_valid)| !is_valid) {
            Some((field, _)) => Err(Error::Field(field)),
            None => Ok(()),
        }
    }
}

impl MachineManifest {
    /// The manifest of a machine; `None` while it has no disk on a node.
    #[must_use]
    pub fn of_machine(
        metadata: &ObjectMeta,
        spec: Value,
        status: &VirtualMachineStatus,
    ) -> Option<Self> {
        let record = DiskRecord {
            machine_type: status.machine_type.clone(),
            suspended: status.power_state == Some(PowerState::Suspended),
            ..DiskRecord::of_machine(metadata, status)?
        };
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|key, _| !NOT_KEPT.contains(&key.as_str()));
        Some(Self {
            version: MANIFEST_VERSION,
            uid: metadata.uid.clone()?,
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            labels: metadata.labels.clone().unwrap_or_default(),
            annotations,
            spec,
            record,
        })
    }

    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// [`Error`] where it is none.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.len() > MANIFEST_LIMIT {
            return Err(Error::TooLong(text.len(), MANIFEST_LIMIT));
        }
        let manifest: Self = serde_json::from_str(text).map_err(Error::Json)?;
        if manifest.version > MANIFEST_VERSION {
            return Err(Error::Later(manifest.version));
        }
        if !manifest.spec.is_object() {
            return Err(Error::Field("spec"));
        }
        manifest.record.check()?;
        Ok(manifest)
    }

    /// The text of a manifest, if it is short enough.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`].
    pub fn to_json(&self) -> Result<String, Error> {
        let text = serde_json::to_string(self).map_err(Error::Json)?;
        match text.len() {
            ..=MANIFEST_LIMIT => Ok(text),
            long => Err(Error::TooLong(long, MANIFEST_LIMIT)),
        }
    }
}

#[cfg(test)]
mod tests;
