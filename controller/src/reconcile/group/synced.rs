//! Whether a member has the power state of its group.
//!
//! | reason | when |
//! | --- | --- |
//! | `Synced` | it has |
//! | `Pending` | the group has not changed it yet, or the change applies later |
//! | `NotSynced` | it is on the way, or its desired state was changed directly since |
//! | `NotSupported` | its run strategy does not follow groups, or its memory cannot be saved |
//! | `PowerStatePatchError` | the API server refused the change |
//!
//! Invariant: decided from the objects alone, so that a change made twice shows as one.
//! Failure: none.

use crds::conditions::{self, MEMBER_POWER_STATE_SYNCED};
use crds::names::APPLY_POWER_STATE_TIME;
use crds::{GroupPowerChange, PowerState, VirtualMachine, VirtualMachineGroup};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use lifecycle::group::{Record, is_changed_directly, member_change};
use lifecycle::{DesiredState, Strategy};

use super::change;
use super::members::{self, ConditionState, Member, Object};

/// Reason of a member that the API server did not let change.
pub(super) const REFUSED: &str = "PowerStatePatchError";

/// The group and its change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standard<'a> {
    pub(super) group: &'a VirtualMachineGroup,
    pub(super) change: Option<&'a GroupPowerChange>,
    pub(super) now: Timestamp,
}

/// What a member was given.
pub(super) fn record(object: &Object) -> Option<Record> {
    match object {
        Object::Machine(vm) => Record::read(vm.annotations()),
        Object::Group(group) => Record::read(group.annotations()),
    }
}

impl Standard<'_> {
    /// Whether the group has given its change to the member.
    pub(super) fn is_given(&self, object: &Object) -> bool {
        let Some(change) = self.change else {
            return false;
        };
        let uid = self.group.uid().unwrap_or_default();
        record(object).is_some_and(|record| record.is_about(&uid, &change::name(change)))
    }

    /// State of the condition; `None`: the group desires no power state.
    pub(super) fn compare(&self, member: &Member) -> Option<ConditionState> {
        self.group.spec.power_state?;
        let object = member.object.as_ref();
        let Some(object) = object.filter(|_| member.unlinked.is_none()) else {
            return Some(ConditionState::unmet(
                "Pending",
                "it does not belong to the group",
            ));
        };
        let Some(change) = self.change else {
            let text = "the group waits for the group above";
            return Some(ConditionState::unmet("Pending", text));
        };
        let is_given = self.is_given(object);
        Some(match object {
            Object::Machine(vm) if is_given => self.machine(vm, change),
            Object::Group(group) if is_given => nested(group, change),
            Object::Machine(vm) => {
                let refusal = member_change(&vm.spec, vm.annotations(), change.power_state).err();
                match refusal {
                    Some(refusal) => ConditionState::unmet("NotSupported", refusal.to_string()),
                    None => self.not_given(member, change),
                }
            }
            Object::Group(_) => self.not_given(member, change),
        })
    }

    fn not_given(&self, member: &Member, change: &GroupPowerChange) -> ConditionState {
        let tiers = self.group.spec.boot_order.len();
        let at = change::position(change.power_state, member.tier, tiers);
        if at >= change.tier_times.len() {
            return ConditionState::unmet("Pending", "it waits until the tier before it is ready");
        }
        let old = member.reported(self.group);
        let old = old.and_then(|old| conditions::find(&old.conditions, MEMBER_POWER_STATE_SYNCED));
        match old.filter(|old| old.reason == REFUSED) {
            // Until the group succeeds.
            Some(old) => ConditionState::unmet(REFUSED, &old.message),
            None => ConditionState::unmet("Pending", "the group is about to change it"),
        }
    }

    fn machine(&self, vm: &VirtualMachine, change: &GroupPowerChange) -> ConditionState {
        let desired = DesiredState::from_spec(&vm.spec).ok().flatten();
        if is_changed_directly(&vm.spec, vm.annotations()) {
            let desired = desired.map_or_else(String::new, |desired| desired.to_string());
            let text = format!("{desired} was set in the machine after the change of the group");
            return ConditionState::unmet("NotSynced", text);
        }
        let at = vm.annotations().get(APPLY_POWER_STATE_TIME);
        let at = at.and_then(|text| text.parse::<Timestamp>().ok());
        if let Some(at) = at.filter(|at| *at > self.now) {
            return ConditionState::unmet("Pending", format!("it changes at {at}"));
        }
        let observed = vm.status.as_ref().and_then(|status| status.power_state);
        // There was nothing to suspend.
        let is_off = desired.is_some_and(|desired| desired.strategy() == Strategy::Halted);
        let aim = match change.power_state {
            PowerState::Suspended if is_off => PowerState::PoweredOff,
            other => other,
        };
        match observed {
            Some(observed) if observed == aim => ConditionState::met(),
            Some(observed) => ConditionState::unmet("NotSynced", format!("it is {observed:?}")),
            None => ConditionState::unmet("NotSynced", "its power state is not known yet"),
        }
    }
}

fn nested(group: &VirtualMachineGroup, change: &GroupPowerChange) -> ConditionState {
    if group.spec.power_state != Some(change.power_state) {
        let text = "another powerState was set in the group after the change of this group";
        return ConditionState::unmet("NotSynced", text);
    }
    let record = Record::read(group.annotations()).map(|record| record.to_string());
    let taken_over = group.status.as_ref().and_then(|s| s.power_change.as_ref());
    if taken_over.and_then(|change| change.parent.clone()) != record {
        return ConditionState::unmet("Pending", "the group has not taken the change over yet");
    }
    let kind = MEMBER_POWER_STATE_SYNCED;
    members::of_all(group, kind, "NotSynced", "do not have the power state yet")
}
