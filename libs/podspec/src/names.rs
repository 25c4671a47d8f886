//! Names of annotations and labels of pods, and of reserved images: the only place that spells
//! them.
//!
//! Invariant: a key appears here once. Names that only objects other than pods have are in
//! `crds::names`.
//! Failure: none.

/// On pods: the URL that the name of the image refers to, when it is made of the URL's hash.
pub const IMAGE_URL: &str = "vmlet.dev/image-url";
/// On pods: the Secret with certificates for the server of the image.
pub const IMAGE_TLS_SECRET: &str = "vmlet.dev/image-tls-secret";
/// Number of virtual CPUs.
pub const VCPU_COUNT: &str = "vmlet.dev/vcpu-count";
/// Guest memory.
pub const MEMORY: &str = "vmlet.dev/memory";
/// Most virtual CPUs that the machine can get while it runs.
pub const MAX_VCPUS: &str = "vmlet.dev/max-vcpus";
/// Most memory that the guest can get while it runs.
pub const MAX_MEMORY: &str = "vmlet.dev/max-memory";
/// CPU model that the guest sees.
pub const CPU_MODEL: &str = "vmlet.dev/cpu-model";
/// Board that the guest sees.
pub const MACHINE_TYPE: &str = "vmlet.dev/machine-type";
/// Firmware that boots the guest.
pub const FIRMWARE: &str = "vmlet.dev/firmware";
/// Whether the guest has a port for `vmlet-guest`, and gets it from cloud-init.
pub const GUEST_AGENT: &str = "vmlet.dev/guest-agent";
/// How the root disk is made from the image. On pods `linked` or `direct`; on virtual machines any
/// other text is the plain way.
pub const FAST_DEPLOY: &str = "vmlet.dev/fast-deploy";
/// On pods: what becomes of a root claim that has the content of another image.
pub const ROOT_CONTENT: &str = "vmlet.dev/root-content";
/// Size of the root disk when larger than the image's.
pub const ROOT_VOLUME_SIZE: &str = "vmlet.dev/root-volume-size";
/// SMBIOS system UUID.
pub const SYSTEM_UUID: &str = "vmlet.dev/system-uuid";
/// Whether the guest is connected at all.
pub const NETWORK: &str = "vmlet.dev/network";
/// Hardware address of the guest's first NIC.
pub const MAC_ADDRESS: &str = "vmlet.dev/mac-address";
/// Whether the guest may send with any source address. Only for users who may set annotations
/// of a `.protected` domain.
pub const ALLOW_SPOOFING: &str = "vmlet.dev.protected/allow-spoofing";
/// On pods: the root disk is the node's disk of the machine with this UID.
pub const VM_DISK: &str = "vmlet.dev/vm-disk";
/// Label and annotation of pods: `instance` (the running machine), `provision` (the placeholder:
/// chooses the node of the root disk, and holds the machine's place there until its first instance
/// is placed) or `backup-target` (has a claim mounted, in which the node keeps backups).
pub const POD_ROLE_LABEL: &str = "vmlet.dev/role";
/// On pods of the role `backup-target`: UID of the claim that the pod has mounted at
/// [`BACKUP_TARGET_MOUNT`].
pub const BACKUP_TARGET_CLAIM: &str = "vmlet.dev/backup-target-claim";
/// Where the container of a pod of the role `backup-target` has its claim.
pub const BACKUP_TARGET_MOUNT: &str = "/run/vmlet/backup-target";
/// What the target of a backup begins with, in requests to nodes, when it is a claim; the UID of the claim follows. No
/// name of a target in a configuration has a colon.
pub const CLAIM_TARGET: &str = "claim:";
/// On pods: resume the saved memory beside the disk when `true`.
pub const RESTORE: &str = "vmlet.dev/restore";
/// On pods: start with paused vCPUs when `true`.
pub const START_PAUSED: &str = "vmlet.dev/start-paused";
/// On pods: UUID of the domain.
pub const INSTANCE_UUID: &str = "vmlet.dev/instance-uuid";
/// On pods: UUID in the guest's SMBIOS tables.
pub const BIOS_UUID: &str = "vmlet.dev/bios-uuid";
/// On pods with a root disk on a volume: a UUID that is another one when the disk has become an earlier one.
pub const DISK_GENERATION: &str = "vmlet.dev/disk-generation";
/// Whether the guest has a cloud-init disk.
pub const CLOUD_INIT: &str = "vmlet.dev/cloud-init";
/// How directories of volumes reach the guest.
pub const SHARES: &str = "vmlet.dev/shares";
/// Files of volumes that are disks of the guest.
pub const FILE_DISKS: &str = "vmlet.dev/file-disks";
/// How guest data is laid out.
pub const SEED_TYPE: &str = "vmlet.dev/cloud-init-image-type";
/// Identity of the guest for cloud-init.
pub const INSTANCE_ID: &str = "vmlet.dev/cloud-init-instance-id";
/// Keys that win over the generated meta-data.
pub const META_DATA: &str = "vmlet.dev/cloud-init-meta-data";
/// cloud-init's network configuration, passed on as it is.
pub const NETWORK_CONFIG: &str = "vmlet.dev/cloud-init-network-config";
/// Object that cloud-init's network configuration comes from.
pub const NETWORK_CONFIG_SOURCE: &str = "vmlet.dev/cloud-init-network-config-source";
/// Version of the network configuration that is made of the pod's network.
pub const NETWORK_VERSION: &str = "vmlet.dev/cloud-init-network-version";
/// Whether the guest is to get all addresses by DHCP.
pub const FORCE_DHCP: &str = "vmlet.dev/force-dhcp";
/// Object whose keys are files of the guest.
pub const FILES_SOURCE: &str = "vmlet.dev/files-from-data-source";
/// Source of the answer files of Windows Setup.
pub const SYSPREP_SOURCE: &str = "vmlet.dev/sysprep-source";
/// User data, a map.
pub const USER_DATA: &str = "vmlet.dev/cloud-init-user-data";
/// Whether the pod's own user data and keys replace those of the sources.
pub const USER_DATA_OVERWRITE: &str = "vmlet.dev/cloud-init-user-data-overwrite";
/// User data, passed on as it is.
pub const USER_DATA_SCRIPT: &str = "vmlet.dev/cloud-init-user-data-script";
/// Object that user data come from.
pub const USER_DATA_SOURCE: &str = "vmlet.dev/cloud-init-user-data-source";
/// Key of that object that is passed on as it is.
pub const USER_DATA_SOURCE_KEY: &str = "vmlet.dev/cloud-init-user-data-source-key";
/// How that key's value is encoded.
pub const USER_DATA_SOURCE_ENCODING: &str = "vmlet.dev/cloud-init-user-data-source-encoding";
/// SSH keys, one a line.
pub const SSH_KEYS: &str = "vmlet.dev/ssh-keys";
/// Object that SSH keys come from.
pub const SSH_KEYS_SOURCE: &str = "vmlet.dev/ssh-keys-source";

/// On pods: the generation of the machine that the pod was built from.
pub const GENERATION: &str = "vmlet.dev/vm-generation";
/// On pods: hash of what the pod was built from, as `lifecycle::revision` makes it.
pub const REVISION: &str = "vmlet.dev/vm-revision";
/// On pods: the devices that the machine has in it, as JSON of `spec`. Saved memory can be resumed with
/// these only.
pub const DEVICES: &str = "vmlet.dev/devices";
/// On placeholder pods: hash of what the machine asked the scheduler for when the pod was made.
pub const PLACEMENT: &str = "vmlet.dev/placement";
/// Label on pods and tasks: the UID of the machine.
pub const VM_UID_LABEL: &str = "vmlet.dev/vm-uid";
/// On pods: what is known of machine and guest, as `crds::guest_facts::GuestFacts`. Written by the
/// node's agent.
pub const GUEST_FACTS: &str = "vmlet.dev/guest-facts";
/// On pods: what proves that the guest has an address, as the image states it.
pub const IP_ASSURANCE: &str = "vmlet.dev/ip-assurance";
/// Annotations that the controller and the agent write on pods, and that are no settings.
pub(crate) const OF_PROGRAMS: [&str; 8] = [
    DEVICES,
    GUEST_FACTS,
    DISK_IMAGE,
    IP_ASSURANCE,
    GENERATION,
    REVISION,
    PLACEMENT,
    VM_UID_LABEL,
];

/// `runAsUser` of the pods of VirtualMachines: Pod Security `restricted` requires one that is not
/// root. No process of a node runs as it, and shares are accessed as if the pod requested no user.
pub const MACHINE_USER: u32 = 65_534;

/// Image of a pod whose root disk has its content already.
pub const NO_IMAGE: &str = "vmlet.dev/none";
/// On pods with [`NO_IMAGE`]: the name of the image that the root disk was made from.
pub const DISK_IMAGE: &str = "vmlet.dev/disk-image";
/// Feature of a node's daemon: the pod of a machine whose root disk is on the node may have
/// [`NO_IMAGE`].
pub const DISK_WITHOUT_IMAGE: &str = "DiskWithoutImage";
/// Feature of a node's daemon: it keeps manifests of machines beside their disks.
pub const DISK_MANIFESTS: &str = "DiskManifests";
/// Feature of a node's daemon: it flattens the disks of machines that run.
pub const DISK_PULLS: &str = "DiskPulls";
/// Feature of a node's daemon: snapshots may have the memory of the guest, and machines resume from that.
pub const SNAPSHOT_MEMORY: &str = "SnapshotMemory";
/// Beginning of the features of a node's daemon that name its targets of backups; the name of the target follows.
pub const BACKUP_TARGET: &str = "BackupTarget-";
/// Feature of a node's daemon: backups may be kept in a claim that a pod of the role `backup-target` has mounted.
pub const BACKUP_CLAIMS: &str = "BackupClaims";
/// Feature of a node's daemon: a look at an image in a registry gives the digest that its name means.
pub const IMAGE_DIGESTS: &str = "ImageDigests";
/// Feature of a node's daemon: a look at an image gives the digest that a file of checksums has for it, and a name
/// may have a SHA-512.
pub const IMAGE_CHECKSUMS: &str = "ImageChecksums";
