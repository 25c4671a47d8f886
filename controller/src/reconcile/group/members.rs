//! The members of a group: what each is, and what it shows.
//!
//! Invariant: in the order of the boot order; a member that two tiers name belongs to the first. What a
//! member shows comes from the stores alone.
//! Failure: a member that does not belong to the group says why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::conditions::{self, READY, Status};
use crds::{
    GroupMember, GroupMemberKind, GroupMemberStatus, MemberPlacement, PowerState, VirtualMachine,
    VirtualMachineGroup, VirtualMachineGroupStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::family::{self, Unlinked};
use crate::stores::{Key, Stores};

/// The object that a member is.
#[derive(Debug, Clone)]
pub(super) enum Object {
    Machine(Arc<VirtualMachine>),
    Group(Arc<VirtualMachineGroup>),
}

/// A member.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) kind: GroupMemberKind,
    pub(super) name: String,
    /// Position of its tier in the boot order.
    pub(super) tier: usize,
    /// What exists under its name.
    pub(super) object: Option<Object>,
    /// Why it does not belong to the group.
    pub(super) unlinked: Option<Unlinked>,
    /// Its position in the status of the group.
    position: Option<usize>,
}

impl Member {
    /// What the status of the group has of it.
    pub(super) fn reported<'a>(
        &self,
        group: &'a VirtualMachineGroup,
    ) -> Option<&'a GroupMemberStatus> {
        let status = group.status.as_ref()?;
        let found = status.members.get(self.position?)?;
        Some(found).filter(|found| found.kind == self.kind && found.name == self.name)
    }
}

/// Status, reason and message of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionState {
    pub(super) status: Status,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ConditionState {
    pub(super) const fn met() -> Self {
        Self {
            status: Status::True,
            reason: "",
            message: String::new(),
        }
    }

    pub(super) fn unmet(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: Status::False,
            reason,
            message: message.into(),
        }
    }
}

/// All members.
pub(super) fn all(stores: &Stores, group: &VirtualMachineGroup) -> Vec<Member> {
    let shown = group.status.iter().flat_map(|status| &status.members);
    let positions: BTreeMap<_, _> = shown
        .enumerate()
        .map(|(at, one)| ((one.kind, one.name.as_str()), at))
        .collect();
    let mut known = BTreeSet::new();
    let mut members = Vec::new();
    for (tier, listed) in group.spec.boot_order.iter().enumerate() {
        for member in &listed.members {
            if known.insert((member.kind, member.name.clone())) {
                let position = positions.get(&(member.kind, member.name.as_str()));
                members.push(Member {
                    position: position.copied(),
                    ..look_up(stores, group, tier, member)
                });
            }
        }
    }
    members
}

fn look_up(
    stores: &Stores,
    group: &VirtualMachineGroup,
    tier: usize,
    member: &GroupMember,
) -> Member {
    let key = Key::new(group.namespace().unwrap_or_default(), &member.name);
    let object = match member.kind {
        GroupMemberKind::VirtualMachine => stores.vm(&key).map(Object::Machine),
        GroupMemberKind::VirtualMachineGroup => family::find(stores, &key).map(Object::Group),
    };
    let named = object.as_ref().and_then(Object::group_name);
    let this = group.name_any();
    let unlinked = match (&object, named) {
        (None, _) => Some(Unlinked::NotFound(format!(
            "{} does not exist",
            member.name
        ))),
        (Some(_), Some(named)) if named == this => None,
        (Some(_), _) => Some(Unlinked::NotMember(format!(
            "set groupName: {this} in {}",
            member.name
        ))),
    };
    Member {
        kind: member.kind,
        name: member.name.clone(),
        tier,
        object,
        unlinked,
        position: None,
    }
}

impl Object {
    fn group_name(&self) -> Option<&str> {
        match self {
            Self::Machine(vm) => vm.spec.group_name.as_deref(),
            Self::Group(group) => group.spec.group_name.as_deref(),
        }
    }

    pub(super) fn uid(&self) -> Option<String> {
        match self {
            Self::Machine(vm) => vm.uid(),
            Self::Group(group) => group.uid(),
        }
    }

    /// Observed power state; a group has none of its own.
    pub(super) fn power_state(&self) -> Option<PowerState> {
        match self {
            Self::Machine(vm) => vm.status.as_ref()?.power_state,
            Self::Group(_) => None,
        }
    }

    pub(super) fn placement(&self) -> Option<MemberPlacement> {
        let Self::Machine(vm) = self else { return None };
        let status = vm.status.as_ref()?;
        status.node_name.as_ref()?;
        Some(MemberPlacement {
            node: status.node_name.clone(),
            zone: status.zone.clone(),
        })
    }

    /// Whether the machine, or all machines of the group, have a place.
    pub(super) fn is_placed(&self) -> ConditionState {
        let vm = match self {
            Self::Machine(vm) => vm,
            Self::Group(group) => {
                let kind = conditions::MEMBER_PLACEMENT_READY;
                return of_all(group, kind, "PendingPlacement", "have no node yet");
            }
        };
        let status = vm.status.clone().unwrap_or_default();
        let has_place = status.node_name.is_some()
            || conditions::is_true(&status.conditions, conditions::CREATED);
        if has_place {
            return ConditionState::met();
        }
        match conditions::find(&status.conditions, conditions::PLACEMENT_READY) {
            Some(found) if found.reason == "Error" => {
                ConditionState::unmet("Error", &found.message)
            }
            Some(found) if found.status != "True" => {
                ConditionState::unmet("NotReady", &found.message)
            }
            _ => ConditionState::unmet("PendingPlacement", "it has no node yet"),
        }
    }

    /// Whether the machine, or all machines of the group, are ready.
    pub(super) fn is_ready(&self) -> ConditionState {
        let vm = match self {
            Self::Machine(vm) => vm,
            Self::Group(group) => return of_all(group, READY, "NotReady", "are not ready"),
        };
        let all = vm
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice());
        let found = all.and_then(|all| conditions::find(all, READY));
        let is_ready = found.is_some_and(|found| found.status == "True");
        if is_ready {
            return ConditionState::met();
        }
        let message = found.map_or("", |found| found.message.as_str());
        ConditionState::unmet("NotReady", message)
    }
}

/// The condition of that type over all members of a group, as its status has it for the present
/// specification.
pub(super) fn of_all(
    group: &VirtualMachineGroup,
    kind: &str,
    reason: &'static str,
    what: &str,
) -> ConditionState {
    let status = group.status.clone().unwrap_or_default();
    if !is_current(group, &status) {
        return ConditionState::unmet(
            "Pending",
            "the group was not looked at since its last change",
        );
    }
    let is_bad = |all: &[Condition]| !conditions::is_true(all, kind);
    let bad = status.members.iter().filter(|m| is_bad(&m.conditions));
    let names: Vec<_> = bad.map(|member| member.name.as_str()).collect();
    if names.is_empty() {
        return ConditionState::met();
    }
    ConditionState::unmet(reason, format!("{} {what}", enumerated(&names)))
}

fn is_current(group: &VirtualMachineGroup, status: &VirtualMachineGroupStatus) -> bool {
    let ready = conditions::find(&status.conditions, READY);
    ready.is_some_and(|ready| ready.observed_generation == group.metadata.generation)
}

/// The first names of a list.
pub(super) fn enumerated(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
