//! The snapshot or machine of which a machine is a clone, or the backup that it is restored from.
//!
//! Invariant: exactly one of `snapshot`, `virtualMachine` and `backup` is set, and none ever changes; all are of the
//! namespace of the machine.
//! Failure: the API server refuses what the rules here forbid.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

use super::rules::ONE_SOURCE;

/// What the root disk of a machine is copied from.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule(ONE_SOURCE, "set exactly one of source.snapshot, source.virtualMachine and source.backup"))]
#[serde(rename_all = "camelCase")]
pub struct CloneSource {
    /// VirtualMachineSnapshot in the namespace of the machine. The machine of the snapshot may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SourceReference>,
    /// VirtualMachine in the namespace of the machine. Of one that runs the controller takes a snapshot for the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine: Option<SourceReference>,
    /// VirtualMachineBackup in the namespace of the machine. The machine of the backup may run, and may not exist any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<SourceReference>,
}

/// The name of a source.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}
