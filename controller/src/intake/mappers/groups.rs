//! Which groups and machines a change of a machine or of a group concerns.
//!
//! Invariant: what a group shows of a member is compared, so that nothing else wakes the group; a status
//! of a group wakes no machine.
//! Failure: none; a name that no object has wakes a key without an object.

use std::collections::BTreeSet;

use crds::conditions::{self, CREATED, PLACEMENT_READY, READY};
use crds::{VirtualMachine, VirtualMachineGroup};
use kube::ResourceExt;

use crate::reconcile::group::family;
use crate::stores::{Affiliation, Change, Key, Relation, Stores};

/// The groups that a machine names, before or now, and those that name it.
pub(super) fn of_machine(change: &Change<VirtualMachine>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && essence(old) == essence(new)
    {
        return Vec::new();
    }
    let key = Key::from_object(&**change.object());
    let mut all: BTreeSet<_> = versions(change)
        .filter_map(|vm| vm.spec.group_name.as_deref())
        .map(|name| Key::new(&key.namespace, name))
        .collect();
    all.extend(stores.index.groups_with(&Affiliation::Machine(key)));
    all.into_iter().collect()
}

/// What a group goes by in a machine.
fn essence(vm: &VirtualMachine) -> impl PartialEq + '_ {
    let status = vm.status.as_ref();
    let condition = |kind: &str| {
        let all = status.map(|status| status.conditions.as_slice());
        let found = all.and_then(|all| conditions::find(all, kind));
        found.map(|found| (&found.status, &found.reason, &found.message))
    };
    let place = status.map(|status| (status.power_state, &status.node_name, &status.zone));
    let requests = status.map(|status| &status.state_change_requests);
    (
        (&vm.spec, vm.annotations(), &vm.metadata.uid),
        (place, requests),
        [CREATED, PLACEMENT_READY, READY].map(condition),
    )
}

/// The group itself, those that it names, before or now, and those that name it.
pub(super) fn of_group(change: &Change<VirtualMachineGroup>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && old == new
    {
        return Vec::new();
    }
    let key = Key::from_object(&**change.object());
    let mut all = BTreeSet::from([key.clone()]);
    let named = versions(change).flat_map(Affiliation::all);
    all.extend(named.filter_map(|affiliation| match affiliation {
        Affiliation::Within(group) | Affiliation::Group(group) => Some(group),
        Affiliation::Machine(_) => None,
    }));
    let within = Affiliation::Within(key.clone());
    all.extend(stores.index.groups_with(&within));
    let listed = Affiliation::Group(key);
    all.extend(stores.index.groups_with(&listed));
    all.into_iter().collect()
}

/// The machines of the group, and of the groups below it: their place and their first start depend on it.
pub(super) fn machines_of(change: &Change<VirtualMachineGroup>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && old.spec == new.spec
        && old.metadata.uid == new.metadata.uid
    {
        return Vec::new();
    }
    let groups = family::with_groups_below(stores, &Key::from_object(&**change.object()));
    let groups = groups.into_iter().map(Relation::Group);
    let machines = groups.flat_map(|group| stores.index.vms_with(&group));
    machines.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The object before and after the change.
fn versions<K>(change: &Change<K>) -> impl Iterator<Item = &K> {
    let old = match change {
        Change::Updated { old, .. } => Some(&**old),
        Change::Created { .. } | Change::Deleted { .. } => None,
    };
    old.into_iter().chain([&**change.object()])
}
