//! `VirtualMachineBackupSchedule`: backups of machines at times, and how many of them are kept.
//!
//! Invariant: a schedule creates and deletes backups that have its label, and no others. The controller alone writes the
//! status.
//! Failure: a schedule that cannot be read, and a backup that cannot be created, show in the condition `Ready`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::Quiesce;
use crate::rules::{self, rule};
use crate::vm_backup::{ONE_TARGET, ONE_TARGET_ONLY};

/// The name becomes a label, and the beginning of the names of backups.
const NAME: &str = "size(self.metadata.name) <= 63";

const ONE_CHOICE: &str = "has(self.vmNames) != has(self.selector)";

/// Backups of machines at times.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineBackupSchedule",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineBackupScheduleStatus",
    shortname = "vmbackupschedule",
    category = "vmlet-all",
    doc = "Backups of virtual machines at times.",
    validation = rule(NAME, "the name of a schedule has at most 63 characters").field_path(".metadata"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Suspended", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Last", type_ = "date", json_path = ".status.lastScheduleTime"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = rule(ONE_CHOICE, "set exactly one of vmNames and selector"),
    validation = rule(ONE_TARGET, ONE_TARGET_ONLY),
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineBackupScheduleSpec {
    /// Times of the backups in UTC: the five fields of cron, such as `30 2 * * *`, or a word such as `@daily`. There are
    /// at least 5 minutes between two of them.
    #[schemars(length(min = 1, max = 128), regex(pattern = rules::SCHEDULE))]
    pub schedule: String,
    /// Creates no backups. When the schedule continues, the last time that has passed meanwhile is made up for. Backups
    /// that exist are kept as `retention` says.
    #[serde(default)]
    pub suspend: bool,
    /// Names of the machines. One that does not exist, or has no disk yet, is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 256),
        inner(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub vm_names: Option<Vec<String>>,
    /// Machines of the namespace by labels. One that is created later is included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<BackupSelector>,
    /// Name of a target that the configuration of nodes has. If neither this nor `targetClaimName` is set, the target is
    /// `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub target: Option<String>,
    /// Name of a claim of the namespace that has the backups, in place of a target of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub target_claim_name: Option<String>,
    /// Flushes the file systems of the guests before each backup begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce: Option<Quiesce>,
    /// Verifies each backup when it is complete.
    #[serde(default)]
    pub verify: bool,
    /// One backup of so many, for each machine, is of the whole disk. 1: each is.
    #[serde(default = "default::seven")]
    #[schemars(range(min = 1, max = 100))]
    pub full_every: u32,
    /// Which backups are kept.
    #[serde(default)]
    pub retention: BackupRetention,
}

/// Machines by labels.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSelector {
    /// Labels that a machine has, with these values. Empty: all machines of the namespace.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// Which backups of a machine are kept. One that a later backup builds upon stays as long as that one.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRetention {
    /// Number of complete backups of each machine that are kept, the newest ones.
    #[serde(default = "default::seven")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: u32,
    /// Keeps older ones, too, for this time after they were made, as a Go duration (`720h`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub keep_for: Option<String>,
}

impl Default for BackupRetention {
    fn default() -> Self {
        Self {
            keep_last: default::seven(),
            keep_for: None,
        }
    }
}

/// Observed state of a schedule.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineBackupScheduleStatus {
    /// Last time of the schedule at which backups were created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// `metadata.generation` that the status is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Defaults that the API server sets.
mod default {
    pub(super) const fn seven() -> u32 {
        7
    }
}
