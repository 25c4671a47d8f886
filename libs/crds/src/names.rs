//! Annotation keys, labels, finalizers and fixed names that users and programs share.
//!
//! Invariant: a key appears here or in [`podspec::names`], once; the key's documentation states who
//! may set it.
//! Failure: none; constants.

pub use podspec::names::{
    BACKUP_CLAIMS, BACKUP_TARGET, BACKUP_TARGET_CLAIM, BACKUP_TARGET_MOUNT, BIOS_UUID,
    CLAIM_TARGET, CLOUD_INIT, CPU_MODEL, DEVICES, DISK_GENERATION, DISK_IMAGE, DISK_MANIFESTS,
    DISK_PULLS, DISK_WITHOUT_IMAGE, FAST_DEPLOY, FILE_DISKS, FIRMWARE, GENERATION, GUEST_AGENT,
    GUEST_FACTS, IMAGE_CHECKSUMS, IMAGE_DIGESTS, IMAGE_TLS_SECRET, IMAGE_URL, INSTANCE_UUID,
    IP_ASSURANCE, MAC_ADDRESS, MACHINE_TYPE, MACHINE_USER, MAX_MEMORY, MAX_VCPUS, MEMORY, NETWORK,
    NO_IMAGE, PLACEMENT, POD_ROLE_LABEL, RESTORE, REVISION, ROOT_VOLUME_SIZE, SHARES,
    SNAPSHOT_MEMORY, START_PAUSED, SYSPREP_SOURCE, VCPU_COUNT, VM_DISK, VM_UID_LABEL,
};

/// Prefix of every annotation and label of ours.
pub const PREFIX: &str = "vmlet.dev/";
/// Annotations below this domain are for privileged users; an admission policy protects them.
pub const PROTECTED_DOMAIN: &str = "vmlet.dev.protected";
/// Overrides the work queue's priority: an integer from -1000 to 1000.
pub const RECONCILE_PRIORITY: &str = "vmlet.dev.protected/reconcile-priority";
/// Delete the object, leave disk and domain alone. Its presence counts, whatever its value.
pub const SKIP_DELETE_PLATFORM_RESOURCE: &str = "vmlet.dev.protected/skip-delete-platform-resource";
/// An administrator's pause. Its presence counts.
pub const ADMIN_PAUSED: &str = "vmlet.dev.protected/admin-paused";
/// Namespaces, separated by commas, from which `dataVolumeTemplates` may clone. An admission policy
/// lets users name only those in which they may create `datavolumes/source`.
pub const CLONE_FROM_NAMESPACES: &str = "vmlet.dev.protected/clone-from-namespaces";
/// Names, separated by commas, of existing DataVolumes without an owner that the machine takes
/// over. An admission policy requires the right to update and delete DataVolumes.
pub const ADOPT_DATA_VOLUMES: &str = "vmlet.dev.protected/adopt-data-volumes";
/// When a group's power change reaches this machine: RFC 3339.
pub const APPLY_POWER_STATE_TIME: &str = "vmlet.dev.protected/apply-power-state-time";
/// On a member of a group: what the group gave it last, as `UID/TIME/FIELD=VALUE`: the UID of the group, the
/// time of its change, and the desired state that the group wrote. A fourth part is the run strategy that
/// the next power-on restores.
pub const GROUP_POWER_STATE: &str = "vmlet.dev.protected/group-power-state";
/// Label on pods: the outermost group of their machine.
pub const GROUP_LABEL: &str = "vmlet.dev.protected/group";
/// Label on a machine, and on a claim, of a replica set: the name of the set.
pub const REPLICA_SET_LABEL: &str = "vmlet.dev/replica-set";
/// Label on a machine, and on a claim, of a replica set: its index.
pub const REPLICA_INDEX_LABEL: &str = "vmlet.dev/replica-index";
/// Label on a machine of a replica set: the revision of the template that it was made from.
pub const TEMPLATE_REVISION_LABEL: &str = "vmlet.dev/template-revision";
/// Pauses reconciliation. Its presence counts. Anyone who may edit the machine may set it.
pub const PAUSED: &str = "vmlet.dev/paused";
/// Lets a machine that is being deleted go without its root disk while the node of that disk has no agent
/// to delete it. Its presence counts. Anyone who may edit the machine may set it.
pub const LEAVE_DISK: &str = "vmlet.dev/leave-disk";
/// Allows a resize when the class itself changed, without a new class name. Its presence counts.
pub const SAME_VM_CLASS_RESIZE: &str = "vmlet.dev/same-vm-class-resize";
/// Label: who paused the machine (`admin`, `devops`, `both`). Privileged.
pub const PAUSED_LABEL: &str = "vmlet.dev/paused";
/// Prefix of checks that hold back a power-on: `poweron.check.vmlet.dev/<component>`.
pub const POWER_ON_CHECK_PREFIX: &str = "poweron.check.vmlet.dev/";
/// Prefix of checks that hold back a deletion: `delete.check.vmlet.dev/<component>`.
pub const DELETE_CHECK_PREFIX: &str = "delete.check.vmlet.dev/";
/// Written once the machine was powered on for the first time.
pub const FIRST_BOOT_DONE: &str = "virtualmachine.vmlet.dev/first-boot-done";
/// Label on a machine that waits for an image cache: the cache's name.
pub const IMAGE_CACHE_LABEL: &str = "vmicache.vmlet.dev/name";
/// Which location of the cache it waits for: `node,store,format`.
pub const IMAGE_CACHE_LOCATION: &str = "vmicache.vmlet.dev/location";
/// The desired state that a machine had before it was suspended, such as `runStrategy=Manual`.
/// Resuming restores it.
pub const RESUME_STATE: &str = "vmlet.dev/resume-state";
/// Requests that a guest which QEMU paused because a disk failed is resumed once: the UID of its pod
/// and a slash, followed by any text that differs from that of earlier requests. The controller
/// removes it.
pub const UNPAUSE_REQUEST: &str = "vmlet.dev/unpause-request";
/// Reason of [`POD_PAUSED_CONDITION`]: QEMU paused the guest because a disk failed.
pub const PAUSED_IO_ERROR: &str = "PausedIOError";
/// The former name of [`RESUME_STATE`]. This version reads and removes it, and never writes it; the
/// next version ignores it.
pub const RESUME_STATE_OLD: &str = "vmlet.dev/resume-wish";
/// Pod condition, set by the agent: the guest's vCPUs are paused; the reason states who paused
/// them.
pub const POD_PAUSED_CONDITION: &str = "vmlet.dev/Paused";
/// Finalizer of the machine, and of its pod until the pod's end is recorded.
pub const FINALIZER: &str = "vmlet.dev/virtualmachine";
/// Finalizer of a snapshot that a node may have taken.
pub const SNAPSHOT_FINALIZER: &str = "vmlet.dev/virtualmachinesnapshot";
/// Finalizer of a backup that a target may have.
pub const BACKUP_FINALIZER: &str = "vmlet.dev/virtualmachinebackup";
/// On a backup: its own UID, since it was requested from a node. An object that a backup tool has restored has that of
/// an earlier object. Written by the controller.
pub const BACKUP_UID: &str = "vmlet.dev/backup-uid";
/// On a backup in a claim: the time, as RFC 3339, until which a pod has the claim mounted on a node, so that the backup can
/// be fetched. `vmletctl export` sets and removes it.
pub const BACKUP_MOUNTED_UNTIL: &str = "vmlet.dev/backup-mounted-until";
/// On a backup that a schedule has created: the UID of the machine that it is to be of.
pub const BACKUP_VM_UID: &str = "vmlet.dev/backup-vm-uid";
/// Label on a backup that a schedule has created: the name of the schedule.
pub const BACKUP_SCHEDULE_LABEL: &str = "vmlet.dev/backup-schedule";
/// Label on a snapshot: the name of its machine. Written by the controller.
pub const SNAPSHOT_VM_LABEL: &str = "snapshot.vmlet.dev/vm-name";
/// Label on the snapshot of a claim: the UID of the snapshot of a machine that it is a part of.
pub const SNAPSHOT_UID_LABEL: &str = "snapshot.vmlet.dev/uid";
/// Annotation of a storage class: the VolumeSnapshotClass for snapshots of its claims.
pub const VOLUME_SNAPSHOT_CLASS: &str = "vmlet.dev/volume-snapshot-class";
/// On a machine that reverts to a snapshot: the name of the snapshot; `restored/` and its UID from the write
/// that restores the specification on. Written and removed by the controller.
pub const REVERT_IN_PROGRESS: &str = "vmlet.dev/snapshot-revert-in-progress";
/// On a machine: a revert to a snapshot with memory leaves that out, and the machine boots from the disk of the snapshot.
/// Users set and remove it.
pub const REVERT_WITHOUT_MEMORY: &str = "vmlet.dev/revert-without-memory";
/// Scheduling gate of the pod that chooses the node of a root disk.
pub const PROVISIONING_GATE: &str = "vmlet.dev/image-cache";
/// Scheduling gate of a machine's pod until the placeholder has made room for it.
pub const PLACEHOLDER_GATE: &str = "vmlet.dev/placeholder";
/// Readiness gate of placeholders. No program sets the condition, so that a placeholder is never
/// ready and no Service sends it traffic.
pub const PLACEHOLDER_READINESS_GATE: &str = "vmlet.dev/not-a-machine";
/// Between name and UID of a machine in the name of its placeholder, which is longer than any
/// machine's name may be.
pub const PLACEHOLDER_OF: &str = "-placeholder-of-virtual-machine-";
/// Feature of a node whose agent and daemon make the readiness probes that kubelet does not make.
pub const NODE_PROBES: &str = "NodeProbes";
/// Feature of a node whose agent and daemon flatten the root disks of machines.
pub const DISK_PROMOTION: &str = "DiskPromotion";
/// Feature of a node whose agent and daemon flatten the root disks of machines that run.
pub const ONLINE_DISK_PROMOTION: &str = "OnlineDiskPromotion";
/// Feature of a node whose agent and daemon take snapshots with the memory of the guest, and revert to them.
pub const MEMORY_SNAPSHOTS: &str = "MemorySnapshots";
/// Feature of a node whose agent and daemon copy the root disk of a machine for another one.
pub const DISK_CLONES: &str = "DiskClones";
/// Feature of a node whose agent and daemon make backups of root disks, and root disks from them.
pub const DISK_BACKUPS: &str = "DiskBackups";
/// Feature of a node whose agent and daemon keep manifests of machines beside their disks, and let a
/// machine take over the disk of an earlier one.
pub const MACHINE_BACKUP: &str = "MachineBackup";
/// Feature of a node: agent and daemon report the digest that a tag means, for images with
/// `spec.update`.
pub const IMAGE_UPDATES: &str = "ImageUpdates";
/// Feature of a node: agent and daemon report the digest that a file of checksums has for an image, and pull a
/// file by its SHA-512.
pub const IMAGE_CHECKSUM_UPDATES: &str = "ImageChecksumUpdates";
/// On a node's lease: machines whose manifest its agent could not write, and why, as a map of the UIDs
/// of disks and messages. Written by the node's agent.
pub const BACKUP_FAILURES: &str = "vmlet.dev/backup-failures";
/// The machine takes over the disk that [`DISK_RECORD`] names in place of getting a new one. Its
/// presence counts. The controller removes it when the machine has the disk.
pub const ADOPT_DISK: &str = "vmlet.dev.protected/adopt-disk";
/// Which disk on which node the machine has, and what its guest knows it by, as JSON. Written by the
/// controller; anyone may delete it, and the controller writes it again.
pub const DISK_RECORD: &str = "vmlet.dev/disk-record";
/// UID of the claim, named by the machine, that has the content of the root disk, if the image of the machine
/// follows a tag: pods need no image as long as the claim is this one. Written by the controller; anyone may
/// delete it to have an empty claim filled again.
pub const ROOT_CLAIM_UID: &str = "vmlet.dev/root-claim-uid";
/// On a snapshot: its own UID, since it was requested from a node. An object that a backup tool has restored
/// has that of an earlier object. Written by the controller.
pub const SNAPSHOT_UID: &str = "vmlet.dev/snapshot-uid";
/// On a snapshot that the controller takes for a clone: the UID of the clone, also when the garbage collector has
/// removed that from the owners. Written by the controller.
pub const CLONE_UID: &str = "vmlet.dev/clone-uid";
/// Backup tools (Velero) leave an object with this label, and the value `true`, out.
pub const EXCLUDE_FROM_BACKUP: &str = "velero.io/exclude-from-backup";
/// Version of the controller that last looked whether the machine lacks a record of its own.
pub const UPGRADED_TO_BUILD: &str = "vmlet.dev/upgraded-to-build-version";
/// Version of the schema that this was done for.
pub const UPGRADED_TO_SCHEMA: &str = "vmlet.dev/upgraded-to-schema-version";
/// Which records the machine was given, as a bit mask in decimal digits.
pub const UPGRADED_TO_FEATURE: &str = "vmlet.dev/upgraded-to-feature-version";
/// Version of the controller that first saw the machine.
pub const CREATED_AT_BUILD: &str = "vmlet.dev/created-at-build-version";
/// Version of the schema at that time.
pub const CREATED_AT_SCHEMA: &str = "vmlet.dev/created-at-schema-version";
/// RuntimeClass and handler of our pods.
pub const RUNTIME_CLASS: &str = "vmlet";
/// Name of the only `Vmlet` object.
pub const VMLET_NAME: &str = "default";
/// On a node's lease: what runs there, as [`crate::node_facts::NodeFacts`]. Written by the node's
/// agent.
pub const NODE_FACTS: &str = "vmlet.dev/node-facts";
/// On a node's lease: disks there without a machine, and since when, as a map of UIDs and times.
/// Written by the node's agent.
pub const ORPHANED_DISKS: &str = "vmlet.dev/orphaned-disks";
/// On a Node: the annotations that its agent has set there to keep autoscalers from deleting it,
/// separated by commas. Written by the node's agent.
pub const KEPT_FROM_AUTOSCALERS: &str = "vmlet.dev/kept-from-autoscalers";
/// On a Node: what it has made of the NodeConfig objects that match it, as
/// [`crate::node_settings::NodeSettingsReport`]; absent if none matches. Written by the node's agent.
pub const NODE_SETTINGS: &str = "vmlet.dev/node-settings";
/// On a Node: cluster-autoscaler does not remove it while this is `true`.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// On a Node or a pod: Karpenter does not disrupt it while this is `true`.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// On a pod: cluster-autoscaler does not evict it while this is `false`.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// On a CustomResourceDefinition of ours: `allowed` lets it be deleted, and with it all its objects; no
/// machine can be created meanwhile. Written by `vmletctl uninstall` when no machine and no disk is left,
/// and removed by `vmletctl uninstall --cancel`.
pub const REMOVAL: &str = "vmlet.dev/removal";
/// The value of [`REMOVAL`].
pub const REMOVAL_ALLOWED: &str = "allowed";
/// Label on a Node; `true` brings the DaemonSets of Vmlet there.
pub const NODE_LABEL: &str = "vmlet.dev/node";
/// Domain of the labels of a Node that say what it has for machines, such as
/// `node.vmlet.dev/accelerator`. Written by the node's agent, as are those of the two below.
pub const NODE_DOMAIN: &str = "node.vmlet.dev";
/// Label of a Node whose machines can boot by UEFI; the value is [`UEFI_VALUE`].
pub const NODE_UEFI: &str = "node.vmlet.dev/uefi";
/// The value of [`NODE_UEFI`].
pub const UEFI_VALUE: &str = "true";
/// Domain of the labels of a Node that name its machine types; the values are `true`.
pub const MACHINE_TYPE_DOMAIN: &str = "machine-type.node.vmlet.dev";
/// Domain of the labels of a Node that name CPU models of guests; the values are `true`.
pub const CPU_MODEL_DOMAIN: &str = "cpu-model.node.vmlet.dev";
/// Condition of a Node: whether machines can start there, and what it lacks. Written by the node's
/// agent.
pub const NODE_READY: &str = "VmletReady";
/// Reason of that condition where nothing is missing.
pub const NODE_COMPLETE: &str = "MachinesCanStart";
/// Label on the leases of nodes; its value is `true`.
pub const NODE_LEASE_LABEL: &str = "vmlet.dev/node-lease";
/// Where Vmlet's own programs run, and where its leases are, unless configured otherwise.
pub const NAMESPACE: &str = "vmlet-system";
