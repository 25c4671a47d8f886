//! The machines that have names of a set, as the stores show them.
//!
//! Invariant: only a machine with the set's UID as its controller is the set's; what the last pass deleted
//! counts as being deleted although the store does not show it yet.
//! Failure: none; an object with such a name that is not the set's takes the name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::conditions::{self, READY};
use crds::names::TEMPLATE_REVISION_LABEL;
use crds::{VirtualMachine, VirtualMachineReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};
use lifecycle::Strategy;

use super::plan::{Replica, Slot, Slots};
use crate::context::{Context, Key};
use crate::stores::numbered;

/// What a machine with a name of the set is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    /// The set made or adopted it.
    Own,
    /// The set made or adopted it, and its labels are no longer those of the selector.
    Left,
    /// It has the labels, and no controller.
    Orphan,
    /// It is not of the set.
    Foreign,
}

/// A machine with a name of the set.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) vm: Arc<VirtualMachine>,
    pub(super) bond: Bond,
    pub(super) replica: Replica,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) found: BTreeMap<u32, Found>,
    /// When the next machine will have been ready for long enough.
    pub(super) next: Option<Timestamp>,
}

impl Seen {
    /// What the planner goes by.
    pub(super) fn slots(&self) -> Slots {
        let slot = |found: &Found| match found.bond {
            Bond::Own => Slot::Replica(found.replica),
            Bond::Left | Bond::Orphan | Bond::Foreign => Slot::Taken,
        };
        let all = self.found.iter();
        all.map(|(index, found)| (*index, slot(found))).collect()
    }

    /// The machines of the set.
    pub(super) fn own(&self) -> impl Iterator<Item = (u32, &Found)> {
        let all = self
            .found
            .iter()
            .filter(|(_, found)| found.bond == Bond::Own);
        all.map(|(index, found)| (*index, found))
    }
}

pub(super) fn observe(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    revision: &str,
    now: Timestamp,
) -> Seen {
    let key = Key::from_object(set);
    let machines = ctx.stores.index.vms_numbered(&key);
    let machines: Vec<_> = machines
        .iter()
        .filter_map(|key| ctx.stores.vm(key))
        .collect();
    let uids: BTreeSet<_> = machines.iter().filter_map(|vm| vm.uid()).collect();
    let condemned = ctx.shared.condemned.still(&key, &uids);
    let mut seen = Seen::default();
    for vm in machines {
        let name = vm.name_any();
        let Some((_, index)) = numbered(&name) else {
            continue;
        };
        let ready = ready_since(&vm);
        let due = ready.and_then(|since| available_from(set, since));
        let is_condemned = vm.uid().is_some_and(|uid| condemned.contains(&uid));
        let labels = vm.labels();
        let replica = Replica {
            is_deleting: vm.metadata.deletion_timestamp.is_some() || is_condemned,
            has_revision: labels.contains_key(TEMPLATE_REVISION_LABEL),
            is_updated: labels.get(TEMPLATE_REVISION_LABEL).map(String::as_str) == Some(revision),
            is_ready: ready.is_some(),
            is_available: due.is_some_and(|due| due <= now),
            is_off: ready.is_none() && is_off(&vm),
        };
        let bond = bond(set, &vm);
        if bond == Bond::Own && !replica.is_deleting {
            let later = due.filter(|due| *due > now);
            seen.next = [seen.next, later].into_iter().flatten().min();
        }
        seen.found.insert(index, Found { vm, bond, replica });
    }
    seen
}

fn controller_of(object: &impl Resource) -> Option<&OwnerReference> {
    let mut owners = object.owner_references().iter();
    owners.find(|owner| owner.controller == Some(true))
}

fn bond(set: &VirtualMachineReplicaSet, vm: &VirtualMachine) -> Bond {
    let is_matching = set.spec.selector.matches(vm.labels());
    let is_deleting = vm.metadata.deletion_timestamp.is_some();
    match controller_of(vm) {
        Some(owner) if Some(&owner.uid) == set.metadata.uid.as_ref() => {
            if is_matching || is_deleting {
                Bond::Own
            } else {
                Bond::Left
            }
        }
        None if is_matching && !is_deleting => Bond::Orphan,
        Some(_) | None => Bond::Foreign,
    }
}

/// Whether its owner has switched it off. One that ended by itself is not: a template that gives such
/// machines does not work.
fn is_off(vm: &VirtualMachine) -> bool {
    Strategy::from_spec(&vm.spec).is_ok_and(Strategy::is_off)
}

fn ready_since(vm: &VirtualMachine) -> Option<Timestamp> {
    let all = vm.status.as_ref().map(|status| &status.conditions)?;
    let ready = conditions::find(all, READY)?;
    (ready.status == "True").then_some(ready.last_transition_time.0)
}

/// A time that cannot be computed never comes.
fn available_from(set: &VirtualMachineReplicaSet, since: Timestamp) -> Option<Timestamp> {
    let seconds = i64::from(set.spec.min_ready_seconds);
    since.checked_add(SignedDuration::from_secs(seconds)).ok()
}
