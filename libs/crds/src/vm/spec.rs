//! The specification of a machine.
//!
//! Invariant: exactly one of `powerState`, `runStrategy`, `running` is set.
//! Failure: the API server refuses what the rules here forbid.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeAffinity, PodAffinity, PodAntiAffinity, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::{self, edit, edit_of, immutable, rule};

use super::rules::{
    AFFINITY_FIXED, BIOS_UUID_FIXED, BOOT_DISK_GROWS, BOOTSTRAP_TYPE, IMAGE_FIXED,
    INSTANCE_UUID_FIXED, MACHINE_TYPE_NOT_LOWERED, MACHINE_TYPE_WHILE_OFF, NAME,
    NOT_BORN_SUSPENDED, NOT_OURS, ONE_POWER_FIELD, ONE_ROOT, RESTART_LATER, RESTART_WHILE_ON,
    REVERT_UNDER_WAY, SOME_ROOT, SOURCE_WITHOUT_CLAIM, STORAGE_CLASS_FIXED,
    SUSPENDED_BESIDE_A_DISK, SUSPENDED_FROM_ON, SUSPENDED_WITHOUT_SHARES, TEMPLATES_USED,
};
use super::{
    Bootstrap, CloneSource, DataVolumeTemplate, Firmware, NetworkSpec, ReadinessProbe,
    VirtualMachineStatus, Volume,
};

/// A virtual machine: a persistent root disk, and a pod while the machine runs.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachine",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineStatus",
    shortname = "vm",
    shortname = "vms",
    category = "all",
    category = "vmlet-all",
    doc = "A virtual machine: a persistent root disk, and a pod while the machine runs.",
    validation = rule(NAME, "the name of a machine has at most 63 characters").field_path(".metadata"),
    validation = edit_of("minMachineType", MACHINE_TYPE_WHILE_OFF, "minMachineType can change only while the machine is \
        off or going off"),
    validation = edit_of("minMachineType", MACHINE_TYPE_NOT_LOWERED, "minMachineType can neither be lowered nor removed \
        once the machine has it"),
    validation = edit_of("imageName", IMAGE_FIXED, "image and imageName cannot change once the machine has a node or a disk"),
    validation = edit_of("storageClass", STORAGE_CLASS_FIXED, "storageClass cannot change once the machine has a node or a \
        disk: make another machine for another storage class"),
    validation = edit_of("bootDiskCapacity", BOOT_DISK_GROWS, "bootDiskCapacity can only grow once the machine has a node or a \
        disk: make another machine for a smaller disk"),
    validation = edit_of("bootstrap", BOOTSTRAP_TYPE, "the bootstrap provider cannot change once the machine has a node or \
        a disk: make another machine for another provider"),
    validation = edit_of("affinity", AFFINITY_FIXED, "affinity cannot change once the machine has a node or a disk: use \
        nodeSelector and tolerations, which can, or make another machine"),
    validation = edit_of("biosUUID", BIOS_UUID_FIXED, "biosUUID cannot change once the machine has a node or a disk"),
    validation = edit_of("instanceUUID", INSTANCE_UUID_FIXED, "instanceUUID cannot change once the machine has a node or a \
        disk"),
    validation = edit_of("nextRestartTime", RESTART_LATER, "nextRestartTime must be later than the last restart"),
    validation = edit_of("currentSnapshotName", REVERT_UNDER_WAY, "currentSnapshotName cannot change while the machine goes \
        back to a snapshot"),
    printcolumn(name = "Power-State", type_ = "string", json_path = ".status.powerState"),
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.className"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.imageName"),
    printcolumn(name = "Primary-IP4", type_ = "string", json_path = ".status.network.primaryIP4"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.printableStatus"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName", priority = 1),
    printcolumn(name = "Primary-IP6", type_ = "string", json_path = ".status.network.primaryIP6", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = rule(ONE_POWER_FIELD, "set exactly one of powerState, runStrategy and running"),
    validation = edit(NOT_BORN_SUSPENDED, "a machine cannot be created Suspended").optional_old_self(true),
    validation = edit(SUSPENDED_FROM_ON, "a machine that is off cannot become Suspended"),
    validation = edit(SUSPENDED_BESIDE_A_DISK, "a machine whose root disk is a claim cannot be suspended: \
        memory can be saved only beside disks of nodes"),
    validation = edit(SUSPENDED_WITHOUT_SHARES, "a machine that mounts directories of claims (mountPath) \
        cannot be suspended: their state cannot be saved"),
    validation = rule("!(has(self.image) && has(self.imageName))", "set image or imageName, not \
        both"),
    validation = rule("!has(self.source) || !(has(self.image) || has(self.imageName))", "set source, or image or \
        imageName, not both"),
    validation = rule(SOURCE_WITHOUT_CLAIM, "source excludes storageClass and a volume with root: true: the root \
        disk of a clone is a disk of the node of its source"),
    validation = immutable("source"),
    validation = rule(SOME_ROOT, "set image or imageName, a source, or a volume with root: true"),
    validation = rule("!(has(self.className) && has(self.hardware))", "set className or hardware, \
        not both"),
    validation = edit("oldSelf.hasValue() || !has(self.currentSnapshotName)", "currentSnapshotName \
        cannot be set when a machine is created").optional_old_self(true),
    validation = edit("oldSelf.hasValue() || !has(self.nextRestartTime)", "nextRestartTime cannot \
        be set when a machine is created").optional_old_self(true),
    validation = edit(RESTART_WHILE_ON, "nextRestartTime can be set only on a machine that is on"),
    validation = rule(ONE_ROOT, "at most one volume may have root: true"),
    validation = rule(TEMPLATES_USED, "each of dataVolumeTemplates must be the claim of one of \
        volumes"),
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// Image of the root disk. Mutually exclusive with `imageName`. Neither can change once the
    /// machine has a node or a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// Short form of `image`: names a VirtualMachineImage in the namespace or, if there is none, a
    /// ClusterVirtualMachineImage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub image_name: Option<String>,
    /// Snapshot, machine or backup whose root disk is copied for this machine, in place of an image. Everything else is
    /// as this specification says, and nothing is taken from that of the source. Requires the right to create
    /// `virtualmachinesnapshots/source`, `virtualmachines/source` or `virtualmachinebackups/source`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CloneSource>,
    /// VirtualMachineClass that defines the size. A change resizes the machine while it is off or
    /// when it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub class_name: Option<String>,
    /// Size of the machine, instead of a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<InlineHardware>,
    /// StorageClass of the root disk. The controller creates the claim NAME-root of it, owned by the
    /// machine, unless a volume has `root: true`. Defaults to a disk local to the node. Cannot
    /// change once the machine has a node or a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub storage_class: Option<String>,
    /// Desired power state. Exactly one of `powerState`, `runStrategy` and `running` must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Desired state as a strategy: when the machine runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<RunStrategy>,
    /// Short form of `runStrategy`: `true` is `Always`, `false` is `Halted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// How the machine is powered off.
    #[serde(default = "default::try_soft", skip_serializing_if = "Option::is_none")]
    pub power_off_mode: Option<PowerOpMode>,
    /// How the machine is suspended. All modes save the memory without the help of the guest.
    #[serde(default = "default::try_soft", skip_serializing_if = "Option::is_none")]
    pub suspend_mode: Option<PowerOpMode>,
    /// How the machine is restarted.
    #[serde(default = "default::try_soft", skip_serializing_if = "Option::is_none")]
    pub restart_mode: Option<PowerOpMode>,
    /// Maximum time for the guest to power off or reboot, as a Go duration of at most one week
    /// (`168h`), rounded up to whole seconds. Defaults to `5m`.
    #[serde(
        default = "default::five_minutes",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    #[x_kube(validation = rules::a_week())]
    pub power_off_timeout: Option<String>,
    /// RFC 3339 time of the last requested restart. Can be set only while the machine is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::TIME), extend("format" = "date-time"))]
    pub next_restart_time: Option<String>,
    /// Pauses the vCPUs and keeps the memory in RAM.
    #[serde(default)]
    pub paused: bool,
    /// Data for the first boot of the guest. The provider cannot change once the machine has a node or
    /// a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// Network of the machine. Defaults to one interface on the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSpec>,
    /// Additional disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<Volume>,
    /// CDI DataVolumes that are created and deleted with the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub data_volume_templates: Vec<DataVolumeTemplate>,
    /// How the controller determines whether the machine is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<ReadinessProbe>,
    /// When a linked root disk is flattened. `Online` has an effect only if the installation flattens the disks of
    /// running machines.
    #[serde(default = "default::online", skip_serializing_if = "Option::is_none")]
    pub promote_disks_mode: Option<PromoteDisksMode>,
    /// Minimum machine type, such as `pc-q35-7.2`. Cannot be lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = "^pc-q35-[0-9]{1,3}[.][0-9]{1,3}$"))]
    pub min_machine_type: Option<String>,
    /// Firmware that boots the guest. By default the node of the machine decides: `UEFI` if the image has a
    /// partition table and no boot code, or if the machine booted by UEFI before, else `BIOS`. Set `UEFI` for a
    /// root disk in a claim that UEFI boots and that is made of no image, until the machine has booted once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// UUID in the SMBIOS tables of the guest. If empty, the controller generates it. Cannot change
    /// once the machine has a node or a disk.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "biosUUID")]
    #[schemars(length(max = 36), regex(pattern = rules::UUID))]
    pub bios_uuid: Option<String>,
    /// UUID of the libvirt domain. If empty, the controller generates it. Cannot change once the
    /// machine has a node or a disk.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "instanceUUID"
    )]
    #[schemars(length(max = 36), regex(pattern = rules::UUID))]
    pub instance_uuid: Option<String>,
    /// Size of the root disk. Defaults to the size of the image or the source. Can only grow once the machine
    /// has a node or a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = rules::mebibytes(), validation = rules::between("1Mi", "64Ti"))]
    pub boot_disk_capacity: Option<Quantity>,
    /// Snapshot to revert the machine to. The controller powers the machine off without its guest,
    /// reverts it, and removes this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub current_snapshot_name: Option<String>,
    /// Group that this machine belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub group_name: Option<String>,
    /// Scheduling constraints, as for pods. Cannot change once the machine has a node or a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Labels of the nodes on which the machine may run, beside those of its class, which win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the machine tolerates, as for pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How machines with the same labels are spread over the cluster, as for pods. Labels of the
    /// pods are those of `template`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// PriorityClass of the machine's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub priority_class_name: Option<String>,
    /// Scheduler that places the machine's pods. Defaults to that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub scheduler_name: Option<String>,
    /// Labels and annotations that are added to the machine's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
}

/// A reference to an image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageRef {
    /// `VirtualMachineImage` or `ClusterVirtualMachineImage`.
    #[schemars(length(max = 32), extend("enum" = ["VirtualMachineImage", "ClusterVirtualMachineImage"]))]
    pub kind: String,
    /// Name of the image.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}

/// Size that is defined in the machine itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InlineHardware {
    /// Number of virtual CPUs.
    #[schemars(range(min = 1, max = 512))]
    pub cpus: u32,
    /// Guest memory.
    #[x_kube(validation = rules::mebibytes(), validation = rules::between("32Mi", "16Ti"))]
    pub memory: Quantity,
}

/// Power state of a machine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum PowerState {
    /// The machine runs.
    PoweredOn,
    /// The machine does not run.
    PoweredOff,
    /// The machine does not run; its memory is saved beside its disk.
    Suspended,
}

/// When a machine runs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum RunStrategy {
    /// The machine always runs.
    Always,
    /// The machine runs until it powers itself off; it restarts after a failure.
    RerunOnFailure,
    /// Start and stop requests control the machine.
    Manual,
    /// The machine never runs.
    Halted,
    /// The machine runs once.
    Once,
}

/// How a power operation treats the guest.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum PowerOpMode {
    /// The guest does not take part.
    Hard,
    /// The guest must cooperate.
    Soft,
    /// The guest gets the time to cooperate; the operation is forced if it does not.
    #[default]
    TrySoft,
}

/// When a linked root disk is flattened.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum PromoteDisksMode {
    /// While the machine runs.
    #[default]
    Online,
    /// While the machine is off.
    Offline,
    /// Never.
    Disabled,
}

/// Scheduling constraints of a machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Node affinity, as for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// Pod affinity, as for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
    /// Pod anti-affinity, as for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_anti_affinity: Option<PodAntiAffinity>,
}

/// Metadata of the machine's pods.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Labels and annotations.
    #[serde(default)]
    pub metadata: TemplateMetadata,
}

/// Labels and annotations of the machine's pods. Those of the machine itself are not copied to the
/// pods.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = rule(NOT_OURS, "the template may not set this key: the controller or an \
        administrator does"))]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = rule(NOT_OURS, "the template may not set this key: the controller or an \
        administrator does"))]
    pub annotations: BTreeMap<String, String>,
}

/// Defaults that the API server sets.
mod default {
    use super::{PowerOpMode, PromoteDisksMode};

    #[allow(clippy::unnecessary_wraps, reason = "the field's type")]
    pub(super) fn try_soft() -> Option<PowerOpMode> {
        Some(PowerOpMode::TrySoft)
    }

    #[allow(clippy::unnecessary_wraps, reason = "the field's type")]
    pub(super) fn online() -> Option<PromoteDisksMode> {
        Some(PromoteDisksMode::Online)
    }

    #[allow(clippy::unnecessary_wraps, reason = "the field's type")]
    pub(super) fn five_minutes() -> Option<String> {
        Some("5m".to_owned())
    }
}
