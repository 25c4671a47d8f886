//! `VirtualMachineGroup`: machines, and groups of them, that are powered and placed together.
//!
//! Invariant: a machine belongs to a group only when it names the group and the group's boot order
//! names it.
//! Failure: a member that cannot be linked or powered shows in its own conditions here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::vm::{PowerOpMode, PowerState};

use crate::rules::{self, edit, rule};

/// Machines that are powered on and off, and placed, together.
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
    doc = "Machines that are powered on and off, and placed, together. Not implemented by any \
        controller yet.",
    validation = rule(
        "(!has(self.spec.groupName) || self.spec.groupName != self.metadata.name) && \
         (!has(self.spec.bootOrder) || self.spec.bootOrder.all(t, !has(t.members) || t.members.all(m, \
         m.kind != 'VirtualMachineGroup' || m.name != self.metadata.name)))",
        "a group cannot be a member of itself",
    )
    .field_path(".spec"),
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
    /// Group that this group is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub group_name: Option<String>,
    /// Desired power state of all members. If empty, the group does not change their power state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// How members are powered off. Defaults to the setting of each member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_off_mode: Option<PowerOpMode>,
    /// How members are suspended. Defaults to the setting of each member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_mode: Option<PowerOpMode>,
    /// RFC 3339 time at which the group applies its power state to all members again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::TIME), extend("format" = "date-time"))]
    pub next_force_power_state_sync_time: Option<String>,
    /// Members in the order in which they are powered on. They are powered off in reverse order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub boot_order: Vec<BootTier>,
}

/// Members that are powered on and off at the same time.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootTier {
    /// Machines and groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    #[schemars(length(max = 64))]
    pub members: Vec<GroupMember>,
    /// Delay before these members are powered on, as a Go duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub power_on_delay: Option<String>,
    /// Delay before these members are powered off, as a Go duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    pub power_off_delay: Option<String>,
}

/// A member of a group, in the group's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// Kind of the member.
    #[serde(default)]
    pub kind: GroupMemberKind,
    /// Name of the member.
    #[schemars(length(min = 1, max = 253), regex(pattern = rules::SUBDOMAIN))]
    pub name: String,
}

/// Kinds that can be members of a group.
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
    /// A virtual machine.
    #[default]
    VirtualMachine,
    /// A group of virtual machines.
    VirtualMachineGroup,
}

/// Observed state of a group.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineGroupStatus {
    /// State of each member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    #[schemars(length(max = 1024))]
    pub members: Vec<GroupMemberStatus>,
    /// Time at which the power state of the group was last applied to all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated_power_state_time: Option<Time>,
    /// Conditions by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Observed state of a member.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMemberStatus {
    /// Kind of the member.
    pub kind: GroupMemberKind,
    /// Name of the member.
    pub name: String,
    /// UID of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Observed power state of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Node and zone of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<MemberPlacement>,
    /// Conditions by type: `GroupLinked`, `PowerStateSynced`, `PlacementReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Node and zone of a member.
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
