//! What the owner of a machine wants.
//!
//! Invariant: exactly one of `powerState`, `runStrategy`, `running` is set.
//! Failure: the API server refuses what the rules here forbid.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeAffinity, PodAffinity, PodAntiAffinity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Bootstrap, DataVolumeTemplate, NetworkSpec, ReadinessProbe, VirtualMachineStatus, Volume,
};

/// A virtual machine: a root disk that stays, and a pod whenever it runs.
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
    category = "vmlet"
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// The image of the root disk. Either this or `imageName`; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// Short form of `image`: a VirtualMachineImage of the namespace, else a ClusterVirtualMachineImage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_name: Option<String>,
    /// The VirtualMachineClass that gives the size. Changing it resizes a machine that is off or starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// The size itself, instead of a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<InlineHardware>,
    /// StorageClass of the root disk; empty: a disk local to the node. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// The wish as a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// The wish as a strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<RunStrategy>,
    /// The wish in short: `true` is `Always`, `false` is `Halted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// How the machine is powered off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_off_mode: Option<PowerOpMode>,
    /// How the machine is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_mode: Option<PowerOpMode>,
    /// How the machine is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_mode: Option<PowerOpMode>,
    /// How long a guest may take to power off, as a Go duration; empty: `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_off_timeout: Option<String>,
    /// RFC 3339 time of the last restart that was asked for. The machine must be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_restart_time: Option<String>,
    /// Stand still with memory kept in RAM.
    #[serde(default)]
    pub paused: bool,
    /// First-boot data for the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// Network; absent: one interface on the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSpec>,
    /// More disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// CDI DataVolumes that come and go with the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_volume_templates: Vec<DataVolumeTemplate>,
    /// How readiness is found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<ReadinessProbe>,
    /// When a linked root disk is flattened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote_disks_mode: Option<PromoteDisksMode>,
    /// The least machine type, such as `pc-q35-7.2`. Never lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_machine_type: Option<String>,
    /// UUID in the guest's SMBIOS tables; the controller chooses one when empty. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "biosUUID")]
    pub bios_uuid: Option<String>,
    /// UUID of the domain; the controller chooses one when empty. Immutable.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "instanceUUID"
    )]
    pub instance_uuid: Option<String>,
    /// Size of the root disk; empty: that of the image. Only grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_disk_capacity: Option<Quantity>,
    /// Go back to this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_snapshot_name: Option<String>,
    /// The group this machine belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_name: Option<String>,
    /// Where the machine may run, as for pods. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Labels and annotations of the machine's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
}

/// A reference to an image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageRef {
    /// `VirtualMachineImage` or `ClusterVirtualMachineImage`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// A size written into the machine itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InlineHardware {
    /// Number of virtual CPUs.
    pub cpus: u32,
    /// Guest memory.
    pub memory: Quantity,
}

/// A machine's power.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum PowerState {
    /// Runs.
    PoweredOn,
    /// Does not run.
    PoweredOff,
    /// Its memory is saved beside its disk.
    Suspended,
}

/// When a machine runs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum RunStrategy {
    /// Always.
    Always,
    /// Until it powers itself off; a failure is answered by a restart.
    RerunOnFailure,
    /// As requests say.
    Manual,
    /// Never.
    Halted,
    /// One time.
    Once,
}

/// How hard an operation is.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
pub enum PowerOpMode {
    /// Without asking the guest.
    Hard,
    /// Only with the guest's help.
    Soft,
    /// With the guest's help, and without when it does not help.
    #[default]
    TrySoft,
}

/// When a linked root disk is flattened.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
pub enum PromoteDisksMode {
    /// While the machine runs.
    #[default]
    Online,
    /// While it is off.
    Offline,
    /// Never.
    Disabled,
}

/// Where a machine may run.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// As for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// As for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
    /// As for pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_anti_affinity: Option<PodAntiAffinity>,
}

/// What the machine's pods carry.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Labels and annotations.
    #[serde(default)]
    pub metadata: TemplateMetadata,
}

/// Labels and annotations of the machine's pods; those of the machine itself are not copied.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
