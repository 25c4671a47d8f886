//! `VirtualMachineTask`: one piece of work on one node, for one machine or one image.
//!
//! Invariant: the spec never changes except for `cancel`; a task runs at most once on its node.
//! Failure: `state: Error` with a message; `transient` states whether a new task may help.

mod status;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::node_probe::NodeProbe;
use crate::rules::{self, edit, immutable};

pub use status::{InspectedImage, TakenBackup, TakenSnapshot, TaskState, VirtualMachineTaskStatus};

/// A task that the agent of a node runs for a machine or an image. Internal: users read it,
/// controllers write it.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineTask",
    namespaced,
    derive = "PartialEq",
    status = "VirtualMachineTaskStatus",
    shortname = "vmtask",
    category = "vmlet-all",
    selectable = ".spec.nodeName",
    doc = "A task that the agent of a node runs for a machine or an image. Internal: users read \
        it, controllers write it.",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vmName"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(
        name = "Progress",
        type_ = "integer",
        json_path = ".status.progressPercent"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[x_kube(
    validation = immutable("nodeName"),
    validation = immutable("vmName"),
    validation = immutable("vmNamespace"),
    validation = immutable("vmUID"),
    validation = immutable("kind"),
    validation = immutable("image"),
    validation = immutable("imageURL"),
    validation = immutable("imageTLSSecret"),
    validation = immutable("imageChecksumURL"),
    validation = immutable("sizeBytes"),
    validation = immutable("linked"),
    validation = immutable("online"),
    validation = immutable("timeoutSeconds"),
    validation = immutable("discard"),
    validation = immutable("instanceUID"),
    validation = immutable("probe"),
    validation = immutable("snapshot"),
    validation = immutable("source"),
    validation = immutable("backup"),
    validation = edit("self.cancel || !oldSelf.cancel", "what was cancelled stays cancelled"),
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineTaskSpec {
    /// Node whose agent runs the task.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub node_name: String,
    /// Name of the machine. InspectImage, PullImage: name of the image. VerifyBackup, DeleteBackup: name of the machine
    /// that the backup is of, which may not exist.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub vm_name: String,
    /// Namespace of the machine. Defaults to the namespace of the task. Objects cannot be created
    /// in a namespace that is being deleted; tasks for its machines are in the namespace of the
    /// controller. PullImage for an image cache: namespace of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::LABEL))]
    pub vm_namespace: Option<String>,
    /// UID of the machine. InspectImage, PullImage: UID of the image. Backup, VerifyBackup, DeleteBackup: UID under which
    /// the disk is kept that the backup is of.
    #[serde(rename = "vmUID")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub vm_uid: String,
    /// What the task does.
    pub kind: TaskKind,
    /// Requests the cancellation of a running task.
    #[serde(default)]
    pub cancel: bool,
    /// Provision, InspectImage, PullImage: name of the image in pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1100))]
    pub image: Option<String>,
    /// Provision, InspectImage, PullImage: URL of the image, if the image name is derived from the
    /// hash of the URL; `oci://` and the image name, if that is one of a registry.
    #[serde(rename = "imageURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = rules::IMAGE_URL))]
    pub image_url: Option<String>,
    /// Provision, InspectImage, PullImage: Secret with certificates for the server of the image, in
    /// the namespace of the machine or the image.
    #[serde(
        rename = "imageTLSSecret",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub image_tls_secret: Option<String>,
    /// InspectImage: URL of a file of checksums, which has the digest of the file at `imageURL`.
    #[serde(
        rename = "imageChecksumURL",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 2048), regex(pattern = rules::WEB_URL))]
    pub image_checksum_url: Option<String>,
    /// Provision, CloneDisk: virtual size in bytes. Defaults to the size of the image or the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub size_bytes: Option<i64>,
    /// Provision: creates an overlay on the image (true) or a full copy (false).
    #[serde(default)]
    pub linked: bool,
    /// Promote: flattens the disk while the machine runs (true) or is off.
    #[serde(default)]
    pub online: bool,
    /// GuestShutdown, GuestReboot: maximum time for the guest, in seconds. PowerOff: remaining time
    /// for the guest, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 604_800))]
    pub timeout_seconds: Option<u32>,
    /// Restore: discards the saved memory instead of resuming it.
    #[serde(default)]
    pub discard: bool,
    /// PowerOff, SetProbe: UID of the pod whose machine the task is for. A machine that runs in another
    /// pod is not affected.
    #[serde(
        rename = "instanceUID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub instance_uid: Option<String>,
    /// SetProbe: the probe that the node makes from then on. If unset, the node makes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<NodeProbe>,
    /// Snapshot, Revert, DeleteSnapshot, Freeze: the snapshot that the task is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotRequest>,
    /// CloneDisk: the disk that is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DiskSource>,
    /// Backup, VerifyBackup, DeleteBackup, RestoreBackup: the backup that the task is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupRequest>,
}

impl VirtualMachineTaskSpec {
    /// A task of that kind on `node`, for the machine, or image, with this name and UID.
    #[must_use]
    pub fn new(node: &str, kind: TaskKind, name: &str, uid: &str) -> Self {
        Self {
            node_name: node.to_owned(),
            vm_name: name.to_owned(),
            vm_namespace: None,
            vm_uid: uid.to_owned(),
            kind,
            cancel: false,
            image: None,
            image_url: None,
            image_tls_secret: None,
            image_checksum_url: None,
            size_bytes: None,
            linked: false,
            online: false,
            timeout_seconds: None,
            discard: false,
            instance_uid: None,
            probe: None,
            snapshot: None,
            source: None,
            backup: None,
        }
    }
}

/// The backup that a task is for.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRequest {
    /// UID of the VirtualMachineBackup.
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub uid: String,
    /// Name of the target, which the configuration of the node has; or `claim:` and the UID of a claim, which a pod of the
    /// controller has mounted on the node.
    #[schemars(length(min = 1, max = 63), regex(pattern = rules::BACKUP_TARGET))]
    pub target: String,
    /// RestoreBackup: UID under which the target keeps the disk that the backup is of.
    #[serde(rename = "diskUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub disk_uid: Option<String>,
    /// VerifyBackup, RestoreBackup: SHA-256 of the manifest of the backup when it was made, in 64 hexadecimal digits.
    #[serde(
        rename = "manifestSHA256",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 64, max = 64))]
    pub manifest_sha256: Option<String>,
    /// Backup: makes a backup of the whole disk, also where an earlier one is known.
    #[serde(default)]
    pub full: bool,
    /// Backup: the maximum time for which the guest freezes its file systems, in seconds. If unset, the
    /// guest does not freeze them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub quiesce_seconds: Option<u32>,
}

/// The disk that a task copies.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskSource {
    /// UID under which the node keeps the disk.
    #[serde(rename = "diskUID")]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub disk_uid: String,
    /// UID of the VirtualMachineSnapshot whose content is copied. If unset, the disk is copied as it is, and no machine
    /// may run on it.
    #[serde(
        rename = "snapshotUID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub snapshot_uid: Option<String>,
}

/// The snapshot that a task is for.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRequest {
    /// UID of the VirtualMachineSnapshot.
    #[schemars(length(min = 1, max = 64), regex(pattern = rules::LABEL))]
    pub uid: String,
    /// Snapshot: the maximum time for which the guest freezes its file systems, in seconds. If
    /// unset, the guest does not freeze them. Freeze: the same, a minute at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub quiesce_seconds: Option<u32>,
    /// Snapshot: includes the memory of the guest. Revert: the machine resumes from the memory of the snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

impl VirtualMachineTask {
    /// State of the task; `None` if the agent has not seen it yet.
    #[must_use]
    pub fn state(&self) -> Option<TaskState> {
        self.status.as_ref().and_then(|status| status.state)
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.state().is_some_and(TaskState::is_final)
    }

    /// Namespace of the machine.
    #[must_use]
    pub fn vm_namespace(&self) -> &str {
        let named = self.spec.vm_namespace.as_deref();
        named
            .or(self.metadata.namespace.as_deref())
            .unwrap_or_default()
    }
}

/// What a task does.
#[derive(
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    JsonSchema,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
#[schemars(transform = crate::schema::without_description)]
pub enum TaskKind {
    /// Creates the root disk from an image.
    Provision,
    /// Deletes the root disk and the saved memory.
    DeleteDisk,
    /// Sends a shutdown request to the guest.
    GuestShutdown,
    /// Powers the machine off after the remaining time for the guest.
    PowerOff,
    /// Sends a reboot request to the guest.
    GuestReboot,
    /// Resets the machine.
    Reset,
    /// Saves the memory beside the disk and stops the machine.
    Save,
    /// Resumes the saved memory at the next start, or discards it.
    Restore,
    /// Pauses the vCPUs.
    Pause,
    /// Unpauses the vCPUs.
    Unpause,
    /// Flattens the root disk.
    Promote,
    /// Takes a snapshot of the root disk.
    Snapshot,
    /// Reverts the root disk to a snapshot.
    Revert,
    /// Deletes a snapshot of the root disk.
    DeleteSnapshot,
    /// Has the guest freeze its file systems until the task is cancelled.
    Freeze,
    /// Reads the first bytes of an image from its source.
    InspectImage,
    /// Pulls an image into the image store of the node.
    PullImage,
    /// Sets the readiness probe that the node makes of the machine.
    SetProbe,
    /// Checks that the machine can take over the root disk of an earlier machine of its name.
    Adopt,
    /// Creates the root disk as a copy of another machine's disk on the same node.
    CloneDisk,
    /// Writes a backup of the root disk to a target.
    Backup,
    /// Checks that a target has a backup as it was made.
    VerifyBackup,
    /// Deletes a backup from its target.
    DeleteBackup,
    /// Creates the root disk from a backup.
    RestoreBackup,
}

impl TaskKind {
    /// Whether tasks of this kind are for an image, not for a machine.
    #[must_use]
    pub const fn is_of_image(self) -> bool {
        matches!(self, Self::InspectImage | Self::PullImage)
    }

    /// Whether tasks of this kind are of a VirtualMachineBackup, which makes, records and removes them.
    #[must_use]
    pub const fn is_of_backup(self) -> bool {
        matches!(self, Self::Backup | Self::VerifyBackup | Self::DeleteBackup)
    }
}
