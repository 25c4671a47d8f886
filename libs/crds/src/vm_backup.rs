//! `VirtualMachineBackup`: the root disk of a machine at one moment, in a target outside the node.
//!
//! Invariant: a backup is of one disk of one machine, and is made once. The controller alone writes the status; what it
//! names in the target is named before a node writes there. An incremental backup names the one that it builds upon.
//! Failure: shows in `VirtualMachineBackupCompleted`, a damaged one in `VirtualMachineBackupVerified`; the machine runs on.

mod state;

pub use state::{
    BackupStorage, BackupType, BackupVerification, ParentBackup, VirtualMachineBackupStatus,
};

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Quiesce;
use crate::conditions;
use crate::rules::{self, immutable, rule};

/// The name is in those of its tasks.
const NAME: &str = "size(self.metadata.name) <= 190";

/// A backup has one place.
pub(crate) const ONE_TARGET: &str = "!has(self.target) || !has(self.targetClaimName)";
pub(crate) const ONE_TARGET_ONLY: &str = "set at most one of target and targetClaimName";
/// The target of a backup that names none.
const DEFAULT_TARGET: &str = "default";

/// A backup of a virtual machine.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineBackup",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineBackupStatus",
    shortname = "vmbackup",
    category = "vmlet-all",
    doc = "A backup of a virtual machine.",
    validation = rule(NAME, "the name of a backup has at most 190 characters").field_path(".metadata"),
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vmName"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.targetClaimName", priority = 1),
    printcolumn(name = "Type", type_ = "string", json_path = ".status.type"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"VirtualMachineBackupReady\")].status"
    ),
    printcolumn(
        name = "Stored",
        type_ = "string",
        json_path = ".status.storage.stored"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = immutable("vmName"),
    validation = immutable("target"),
    validation = immutable("targetClaimName"),
    validation = rule(ONE_TARGET, ONE_TARGET_ONLY),
    validation = immutable("mode"),
    validation = immutable("quiesce")
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineBackupSpec {
    /// Name of the machine. Immutable.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub vm_name: String,
    /// Name of a target that the configuration of nodes has. Immutable. If neither this nor `targetClaimName` is set, the
    /// target is `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub target: Option<String>,
    /// Name of a claim of the namespace that has the backup, in place of a target of the nodes. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub target_claim_name: Option<String>,
    /// Whether the backup may build upon an earlier one. Immutable.
    #[serde(default)]
    pub mode: BackupMode,
    /// Flushes the file systems of the guest before the backup begins. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce: Option<Quiesce>,
    /// Verifies the backup once, when it is complete.
    #[serde(default)]
    pub verify: bool,
    /// Any text, such as the present time. Another text than before requests a verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub verify_request: Option<String>,
    /// What becomes of the data in the target when the object is deleted. With its namespace the data always stay.
    #[serde(default)]
    pub deletion_policy: BackupDeletionPolicy,
    /// Description of the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
}

/// Whether a backup may build upon an earlier one.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum BackupMode {
    /// What has changed since the last backup of the disk in the target, where the node knows that; else the whole disk.
    #[default]
    Incremental,
    /// The whole disk.
    Full,
}

/// What becomes of the data of a backup that is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum BackupDeletionPolicy {
    /// A node deletes them, as soon as no later backup builds upon them.
    #[default]
    Delete,
    /// They stay, and no object names them.
    Retain,
}

/// Where a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupPlace<'a> {
    /// In the target of this name, which the configuration of nodes has.
    Target(&'a str),
    /// In the claim of this name.
    Claim(&'a str),
}

impl fmt::Display for BackupPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(name) => write!(f, "target {name}"),
            Self::Claim(name) => write!(f, "claim {name}"),
        }
    }
}

impl VirtualMachineBackupSpec {
    /// Where the backup is, or is to be.
    #[must_use]
    pub fn place(&self) -> BackupPlace<'_> {
        match (&self.target_claim_name, &self.target) {
            (Some(claim), _) => BackupPlace::Claim(claim),
            (None, Some(target)) => BackupPlace::Target(target),
            (None, None) => BackupPlace::Target(DEFAULT_TARGET),
        }
    }
}

impl VirtualMachineBackup {
    /// The condition of that type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        conditions::find(&self.status.as_ref()?.conditions, kind)
    }

    /// Whether the target has it.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        let completed = self.condition(conditions::BACKUP_COMPLETED);
        completed.is_some_and(|completed| completed.status == "True")
    }

    /// Whether it is not made, and never will be.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let completed = self.condition(conditions::BACKUP_COMPLETED);
        completed.is_some_and(|completed| completed.reason == conditions::BACKUP_FAILED)
    }

    /// Whether it is still to be made.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_completed() && !self.has_failed() && self.metadata.deletion_timestamp.is_none()
    }
}
