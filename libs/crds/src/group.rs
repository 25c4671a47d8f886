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
    doc = "Machines that are powered on and off, and placed, together.",
    validation = rule(
        "(!has(self.spec.groupName) || self.spec.groupName != self.metadata.name) && \
         (!has(self.spec.bootOrder) || self.spec.bootOrder.all(t, !has(t.members) || t.members.all(m, \
         m.kind != 'VirtualMachineGroup' || m.name != self.metadata.name)))",
        "a group cannot be a member of itself",
    )
    .field_path(".spec"),
    validation = rule(
        "!has(self.spec.groupName) || !has(self.spec.placement) || size(self.spec.placement) == 0",
        "a group that names a group has no placement of its own: the placement of the outermost group \
         counts",
    )
    .field_path(".spec.placement"),
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
    /// Where machines of this group, and of groups within it, are placed relative to each other. Only
    /// the outermost group can have it. It counts when the node of a machine is chosen; a machine with
    /// its root disk on a node stays there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["topologyKey"]))]
    #[schemars(length(max = 4))]
    pub placement: Vec<GroupPlacement>,
}

/// How the machines of a group are distributed over domains, such as nodes or zones.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupPlacement {
    /// Label of nodes; nodes with the same value are one domain. Such as `kubernetes.io/hostname` or
    /// `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 317), regex(pattern = rules::LABEL_KEY))]
    pub topology_key: String,
    /// `Apart`: no two machines in one domain. `Together`: all in one domain. `Spread`: numbers of
    /// machines in any two domains differ by one at most.
    pub policy: PlacementPolicy,
    /// What the scheduler does where this cannot be.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

/// A distribution of machines over domains.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum PlacementPolicy {
    /// No two machines in one domain.
    Apart,
    /// All machines in one domain.
    Together,
    /// Evenly.
    Spread,
}

/// Whether a machine waits for a node that fits.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum WhenUnsatisfiable {
    /// The machine waits.
    #[default]
    DoNotSchedule,
    /// The machine goes to another node.
    ScheduleAnyway,
}

/// Members that are powered on and off at the same time.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[x_kube(
    validation = rule(
        "!has(self.powerOnDelay) || !has(self.waitForReady) || !self.waitForReady",
        "set powerOnDelay or waitForReady, not both",
    ),
    validation = rule(
        "!has(self.readyTimeout) || (has(self.waitForReady) && self.waitForReady)",
        "readyTimeout needs waitForReady: true",
    ),
)]
#[serde(rename_all = "camelCase")]
pub struct BootTier {
    /// Machines and groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    #[schemars(length(max = 64))]
    pub members: Vec<GroupMember>,
    /// Delay before these members are powered on, counted from the tier before, as a Go duration of at
    /// most one week (`168h`), rounded up to whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    #[x_kube(validation = rules::a_week())]
    pub power_on_delay: Option<String>,
    /// Delay before these members are powered off, counted from the tier before, as a Go duration of at
    /// most one week (`168h`), rounded up to whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    #[x_kube(validation = rules::a_week())]
    pub power_off_delay: Option<String>,
    /// Power these members on when all members of the tier before are ready, in place of a delay.
    #[serde(default)]
    pub wait_for_ready: bool,
    /// Longest time to wait for that, from the time at which the tier before was powered on, as a Go
    /// duration of at most one week (`168h`): then these members are powered on all the same. If empty,
    /// they wait without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), regex(pattern = rules::DURATION))]
    #[x_kube(validation = rules::a_week())]
    pub ready_timeout: Option<String>,
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
    /// State of each member, in the order of `bootOrder`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"), length(max = 1024))]
    pub members: Vec<GroupMemberStatus>,
    /// Time at which the power state of the group was last applied to all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated_power_state_time: Option<Time>,
    /// The change of power that is applied to the members, or was applied last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_change: Option<GroupPowerChange>,
    /// Conditions by type: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A change of the power state of a group. It is recorded before the first member is changed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupPowerChange {
    /// The power state that members receive.
    pub power_state: PowerState,
    /// When the change was recorded. No two changes of a group have the same time.
    pub time: Time,
    /// `nextForcePowerStateSyncTime` that the change is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub force_sync_time: Option<String>,
    /// The change of the group above that this change is part of, as that group wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub parent: Option<String>,
    /// When delays of the tiers begin.
    pub start_time: Time,
    /// Times at which the tiers change, in the order in which they do. Shorter than the boot order as
    /// long as a tier waits for the readiness of the tier before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tier_times: Vec<Time>,
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
    /// Conditions by type: `GroupLinked`, `PowerStateSynced`, `PlacementReady`, `Ready`.
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
