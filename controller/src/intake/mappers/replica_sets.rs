//! Which replica set a change of a machine, a claim or a set concerns.
//!
//! Invariant: a status that the controller writes wakes no set; of a machine only what a set goes by does.
//! Failure: none; a name that no set has wakes none.

use crds::conditions::{self, READY};
use crds::names::REPLICA_SET_LABEL;
use crds::{VirtualMachine, VirtualMachineReplicaSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use lifecycle::Strategy;

use crate::stores::{Change, Key, Stores, numbered};

/// The set that the machine's name is of.
pub(super) fn of_machine(change: &Change<VirtualMachine>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && essence(old) == essence(new)
    {
        return Vec::new();
    }
    let vm = change.object();
    let name = vm.name_any();
    let set = numbered(&name).map(|(set, _)| Key::new(vm.namespace().unwrap_or_default(), set));
    known(set, stores)
}

/// What a set goes by in a machine.
fn essence(vm: &VirtualMachine) -> impl PartialEq + '_ {
    let all = vm.status.as_ref().map(|status| &status.conditions);
    let ready = all.and_then(|all| conditions::find(all, READY));
    (
        (&vm.metadata.uid, &vm.metadata.deletion_timestamp),
        (vm.labels(), vm.owner_references()),
        ready.map(|ready| (&ready.status, &ready.last_transition_time)),
        Strategy::from_spec(&vm.spec).is_ok_and(Strategy::is_off),
    )
}

/// The set itself.
pub(super) fn of_set(change: &Change<VirtualMachineReplicaSet>) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && request(old) == request(new)
    {
        return Vec::new();
    }
    vec![Key::from_object(&**change.object())]
}

/// The set without its status.
fn request(set: &VirtualMachineReplicaSet) -> impl PartialEq + '_ {
    (
        (&set.metadata.uid, &set.metadata.deletion_timestamp),
        (set.annotations(), &set.spec),
    )
}

/// The set that made the claim.
pub(super) fn of_claim(change: &Change<PersistentVolumeClaim>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        && old.owner_references() == new.owner_references()
        && old.labels() == new.labels()
    {
        return Vec::new();
    }
    let claim = change.object();
    let set = claim.labels().get(REPLICA_SET_LABEL);
    let set = set.map(|set| Key::new(claim.namespace().unwrap_or_default(), set));
    known(set, stores)
}

fn known(set: Option<Key>, stores: &Stores) -> Vec<Key> {
    let exists = |key: &Key| stores.replica_sets.get(&key.reference()).is_some();
    set.filter(exists).into_iter().collect()
}
