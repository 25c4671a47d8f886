//! The machine or snapshot of which a machine is a clone.
//!
//! Invariant: exactly one of `snapshot` and `virtualMachine` is set, and neither ever changes; both are of the
//! namespace of the machine.
//! Failure: the API server refuses what the rules here forbid.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{self, rule};

use super::rules::ONE_SOURCE;

/// What the root disk of a machine is copied from.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(validation = rule(ONE_SOURCE, "set exactly one of source.snapshot and source.virtualMachine"))]
#[serde(rename_all = "camelCase")]
pub struct CloneSource {
    /// VirtualMachineSnapshot in the namespace of the machine. The machine of the snapshot may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SourceReference>,
    /// VirtualMachine in the namespace of the machine. It must be powered off until its disk is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine: Option<SourceReference>,
}

/// The name of a source.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}
