//! `VirtualMachineGroup`: machines, and groups of them, that are powered and placed together.
//!
//! Invariant: a machine belongs to a group only when it names the group and the group's boot order names it.
//! Failure: a member that cannot be linked or powered shows in its own conditions here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::vm::{PowerOpMode, PowerState};

use crate::rules::{self, edit, rule};

/// Machines that are powered and placed together.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[kube(
    group = "vmlet.dev",
    version = "v1alpha1",
    kind = "VirtualMachineGroup",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    status = "VirtualMachineGroupStatus",
    shortname = "vmg",
    category = "vmlet-all",
    doc = "Machines that are powered and placed together. No controller acts on it yet.",
    validation = rule(
        "(!has(self.spec.groupName) || self.spec.groupName != self.metadata.name) && \
         (!has(self.spec.bootOrder) || self.spec.bootOrder.all(t, !has(t.members) || t.members.all(m, \
         m.kind != 'VirtualMachineGroup' || m.name != self.metadata.name)))",
        "a group cannot be a member of itself",
    ),
    printcolumn(name = "Power-State", type_ = "string", json_path = ".spec.powerState"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = edit(
    "!has(oldSelf.nextForcePowerStateSyncTime) || (has(self.nextForcePowerStateSyncTime) && \
     timestamp(self.nextForcePowerStateSyncTime) >= timestamp(oldSelf.nextForcePowerStateSyncTime))",
    "nextForcePowerStateSyncTime must be later than it was",
))]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineGroupSpec {
    /// The group that this one is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub group_name: Option<String>,
    /// Power of all members; empty: leave them alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// How members are powered off; empty: as each of them says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_off_mode: Option<PowerOpMode>,
    /// How members are suspended; empty: as each of them says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_mode: Option<PowerOpMode>,
    /// RFC 3339 time: give the group's power to all members once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::TIME), extend("format" = "date-time"))]
    pub next_force_power_state_sync_time: Option<String>,
    /// Members in the order in which they are powered on; they are powered off in reverse.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub boot_order: Vec<BootTier>,
}

/// Members that are powered at the same time.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootTier {
    /// Machines and groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    #[schemars(length(max = 64))]
    pub members: Vec<GroupMember>,
    /// Time to let pass before these are powered on, as a Go duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub power_on_delay: Option<String>,
    /// Time to let pass before these are powered off, as a Go duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub power_off_delay: Option<String>,
}

/// A member of a group, in the group's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// What it is.
    #[serde(default)]
    pub kind: GroupMemberKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}

/// What may be a member of a group.
#[derive(
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    JsonSchema,
)]
#[schemars(transform = crate::schema::without_description)]
pub enum GroupMemberKind {
    /// A machine.
    #[default]
    VirtualMachine,
    /// A group.
    VirtualMachineGroup,
}

/// How a group stands.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineGroupStatus {
    /// How each member stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    #[schemars(length(max = 1024))]
    pub members: Vec<GroupMemberStatus>,
    /// When the group's power last reached all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated_power_state_time: Option<Time>,
    /// Details, by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How a member stands.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMemberStatus {
    /// What it is.
    pub kind: GroupMemberKind,
    /// Its name.
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its observed power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<MemberPlacement>,
    /// Details, by type: `GroupLinked`, `PowerStateSynced`, `PlacementReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Where a member is.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberPlacement {
    /// Name of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Zone of that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}
