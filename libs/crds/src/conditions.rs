//! Condition types and reasons, and how a condition is set.
//!
//! Invariant: `lastTransitionTime` changes only with `status`; a condition without a reason has
//! that of [`reason_of_true`], or its status as its reason.
//! Failure: none.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A machine's root disk exists.
pub const CREATED: &str = "VirtualMachineCreated";
/// The class was found and can be used.
pub const CLASS_READY: &str = "VirtualMachineClassReady";
/// The image was found and can be used.
pub const IMAGE_READY: &str = "VirtualMachineImageReady";
/// The storage class was found and can be used.
pub const STORAGE_READY: &str = "VirtualMachineStorageReady";
/// The bootstrap sources were found. Absent without bootstrap.
pub const BOOTSTRAP_READY: &str = "VirtualMachineBootstrapReady";
/// The networks were found. Absent without interfaces.
pub const NETWORK_READY: &str = "VirtualMachineNetworkReady";
/// The snapshot or machine that is cloned was found and can be copied. Absent without `source`.
pub const SOURCE_READY: &str = "VirtualMachineSourceReady";
/// A node was chosen.
pub const PLACEMENT_READY: &str = "VirtualMachineConditionPlacementReady";
/// The image's files are on the chosen node.
pub const IMAGE_CACHE_READY: &str = "VirtualMachineConditionImageCacheReady";
/// Observed power state is the desired one.
pub const POWER_STATE_SYNCED: &str = "VirtualMachinePowerStateSynced";
/// Every primary address also appears in per-interface data.
pub const GUEST_NETWORK_CONFIG_SYNCED: &str = "VirtualMachineGuestNetworkConfigSynced";
/// A node has begun to flatten the linked disk. Absent if there is nothing to flatten.
pub const DISK_PROMOTION_STARTED: &str = "VirtualMachineDiskPromotionStarted";
/// Linked disks were flattened, or there was nothing to flatten.
pub const DISK_PROMOTION_SYNCED: &str = "VirtualMachineDiskPromotionSynced";
/// The node of the root disk keeps a manifest of the machine beside it. Absent without a disk on a node that
/// does so.
pub const BACKUP_UP_TO_DATE: &str = "VirtualMachineBackupUpToDate";
/// The running size is that of the class.
pub const CLASS_CONFIGURATION_SYNCED: &str = "VirtualMachineClassConfigurationSynced";
/// The machine is where its disk is.
pub const LOCATION_VALID: &str = "VirtualMachineLocationValid";
/// Reconciliation is not paused.
pub const RECONCILE_READY: &str = "VirtualMachineReconcileReady";
/// The guest agent answers.
pub const GUEST_AGENT: &str = "VirtualMachineGuestAgent";
/// The readiness probe's answer, or the pod's readiness.
pub const READY: &str = "Ready";
/// The last pass failed; absent when it did not.
pub const FAILURE: &str = "Failure";
/// The instance runs with another template than the object has.
pub const RESTART_REQUIRED: &str = "RestartRequired";
/// The vCPUs of the guest are paused.
pub const PAUSED: &str = "Paused";
/// Fields of the specification that this version does not support yet; absent if there are none.
pub const UNSUPPORTED: &str = "UnsupportedFeatures";
/// Of an image cache: the format and the size of the disk are known, as far as a node can read them.
pub const CACHE_HARDWARE_READY: &str = "VirtualMachineImageCacheHardwareReady";
/// Of an image cache: the source of the image can be read.
pub const CACHE_PROVIDER_READY: &str = "VirtualMachineImageCacheProviderReady";
/// Of an image cache: every location has the files.
pub const CACHE_FILES_READY: &str = "VirtualMachineImageCacheFilesReady";
/// The machine and its group name each other. Absent without a group.
pub const GROUP_LINKED: &str = "GroupLinked";
/// Of a member of a group: it has the power state that the group desires. Absent if the group desires none.
pub const MEMBER_POWER_STATE_SYNCED: &str = "PowerStateSynced";
/// Of a member of a group: all its machines have a node.
pub const MEMBER_PLACEMENT_READY: &str = "PlacementReady";
/// Of a replica set: a machine or a claim cannot be created, or is not the set's.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Of a snapshot: the node has taken it.
pub const SNAPSHOT_CREATED: &str = "VirtualMachineSnapshotCreated";
/// Of a snapshot of a machine with claims: new claims can be made from those of the storage system.
pub const SNAPSHOT_CSI_SYNCED: &str = "VirtualMachineSnapshotCSISynced";
/// Of a snapshot: all parts of it can be used.
pub const SNAPSHOT_READY: &str = "VirtualMachineSnapshotReady";
/// Of a backup: the target has it.
pub const BACKUP_COMPLETED: &str = "VirtualMachineBackupCompleted";
/// Of a backup: a machine can be made from it.
pub const BACKUP_READY: &str = "VirtualMachineBackupReady";
/// Of a backup: the last verification has found it as it was made. Absent if none was requested.
pub const BACKUP_VERIFIED: &str = "VirtualMachineBackupVerified";
/// The machine reverts to a snapshot, or cannot. Absent if no revert is requested.
pub const REVERT_SUCCEEDED: &str = "VirtualMachineSnapshotRevertSucceeded";
/// Data volumes named in `dataVolumeTemplates` are there.
pub const DATA_VOLUMES_READY: &str = "DataVolumesReady";

/// Reason of [`DISK_PROMOTION_SYNCED`], False: the disk waits for its turn.
pub const DISK_PROMOTION_PENDING: &str = "DiskPromotionPending";
/// Reason of [`DISK_PROMOTION_SYNCED`], False: the node flattens the disk.
pub const DISK_PROMOTION_RUNNING: &str = "DiskPromotionRunning";
/// Reason of [`REVERT_SUCCEEDED`], False: the machine reverts.
pub const REVERT_IN_PROGRESS: &str = "VirtualMachineSnapshotRevertInProgress";
/// Reason of [`BACKUP_COMPLETED`], False: the backup is not made, and never will be.
pub const BACKUP_FAILED: &str = "VirtualMachineBackupFailed";
/// Reason of a condition about something that no node can do yet.
pub const NOT_IMPLEMENTED: &str = "NotImplemented";
/// Reason of [`READY`], Unknown: the node is to make the readiness probe, and cannot.
pub const PROBE_UNAVAILABLE: &str = "ProbeUnavailable";
/// Reason of a condition about something that a node could not give to the guest.
pub const NOT_GIVEN: &str = "NotGiven";

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl Status {
    /// As Kubernetes spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The condition of that type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Whether the condition of that type exists and is exactly `True`.
#[must_use]
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == "True")
}

/// The reason of a machine's condition that is True and needs no more words.
#[must_use]
pub fn reason_of_true(kind: &str) -> &'static str {
    match kind {
        CREATED => "Provisioned",
        CLASS_READY | IMAGE_READY | STORAGE_READY | BOOTSTRAP_READY | NETWORK_READY
        | SOURCE_READY => "Resolved",
        PLACEMENT_READY => "Scheduled",
        IMAGE_CACHE_READY => "Cached",
        DATA_VOLUMES_READY => "Filled",
        POWER_STATE_SYNCED
        | GUEST_NETWORK_CONFIG_SYNCED
        | CLASS_CONFIGURATION_SYNCED
        | MEMBER_POWER_STATE_SYNCED
        | SNAPSHOT_CSI_SYNCED => "Synced",
        DISK_PROMOTION_STARTED => "Started",
        BACKUP_UP_TO_DATE => "BackedUp",
        DISK_PROMOTION_SYNCED => "NothingToPromote",
        LOCATION_VALID => "NodeMatches",
        RECONCILE_READY => "NotPaused",
        GUEST_AGENT => "Connected",
        READY | SNAPSHOT_READY | BACKUP_READY => "Ready",
        SNAPSHOT_CREATED => "Created",
        BACKUP_COMPLETED => "Completed",
        BACKUP_VERIFIED => "Verified",
        GROUP_LINKED => "Linked",
        MEMBER_PLACEMENT_READY => "AlreadyPlaced",
        _ => "True",
    }
}

/// Whether a machine's condition reports no problem. Conditions that report a problem are absent in
/// that case.
#[must_use]
pub fn is_well(condition: &Condition) -> bool {
    let reports_a_problem = [FAILURE, RESTART_REQUIRED, PAUSED, UNSUPPORTED];
    // A disk that is not flattened yet serves as well as one that is; a revert was requested.
    let is_in_progress = [
        DISK_PROMOTION_PENDING,
        DISK_PROMOTION_RUNNING,
        REVERT_IN_PROGRESS,
    ]
    .contains(&condition.reason.as_str());
    !reports_a_problem.contains(&condition.type_.as_str())
        && (condition.status == "True" || is_in_progress)
        && condition.reason != NOT_IMPLEMENTED
}

/// Sets a condition; an empty reason becomes [`reason_of_true`] or the status. Returns whether
/// anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: Status,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> bool {
    let reason = match (reason, status) {
        ("", Status::True) => reason_of_true(kind),
        ("", _) => status.as_str(),
        (reason, _) => reason,
    };
    let wanted = |since: Time| Condition {
        type_: kind.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since,
    };
    match conditions.iter_mut().find(|c| c.type_ == kind) {
        Some(old) => {
            let since = if old.status == status.as_str() {
                old.last_transition_time.clone()
            } else {
                now.clone()
            };
            let new = wanted(since);
            let changed = *old != new;
            *old = new;
            changed
        }
        None => {
            conditions.push(wanted(now.clone()));
            true
        }
    }
}

/// Removes the condition of that type. Returns whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|c| c.type_ != kind);
    conditions.len() != before
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn one(kind: &str, status: Status, reason: &str) -> Condition {
        let mut all = Vec::new();
        let now = Time(Timestamp::UNIX_EPOCH);
        assert!(set(&mut all, kind, status, reason, "", None, &now));
        all.remove(0)
    }

    #[test]
    fn a_reason_replaces_the_status_in_the_text() {
        assert_eq!(one(PLACEMENT_READY, Status::True, "").reason, "Scheduled");
        assert_eq!(one(PLACEMENT_READY, Status::False, "").reason, "False");
        assert_eq!(one(PLACEMENT_READY, Status::Unknown, "").reason, "Unknown");
        assert_eq!(one(PLACEMENT_READY, Status::True, "Why").reason, "Why");
        assert_eq!(one("Other", Status::True, "").reason, "True");
    }

    #[test]
    fn what_reports_a_problem_is_not_well_when_it_is_true() {
        assert!(is_well(&one(CREATED, Status::True, "")));
        assert!(!is_well(&one(CREATED, Status::False, "Error")));
        assert!(!is_well(&one(READY, Status::Unknown, "")));
        assert!(!is_well(&one(
            DISK_PROMOTION_SYNCED,
            Status::True,
            NOT_IMPLEMENTED
        )));
        for (reason, well) in [
            (DISK_PROMOTION_PENDING, true),
            (DISK_PROMOTION_RUNNING, true),
            ("DiskPromotionTaskError", false),
        ] {
            let condition = one(DISK_PROMOTION_SYNCED, Status::False, reason);
            assert_eq!(is_well(&condition), well, "{reason}");
        }
        for kind in [FAILURE, RESTART_REQUIRED, PAUSED, UNSUPPORTED] {
            assert!(!is_well(&one(kind, Status::True, "")), "{kind}");
        }
    }
}
