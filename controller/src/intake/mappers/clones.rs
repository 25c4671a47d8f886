//! Sources of clones, which wait for them.
//!
//! Invariant: only clones whose disk is not made yet are woken, and by what decides whether the source can be copied.
//! Failure: none.

use crds::conditions::{CREATED, is_true};
use crds::{VirtualMachine, VirtualMachineSnapshot, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::with;
use crate::stores::{Change, Key, Relation, Stores};

/// The clones that are to be made of a machine.
pub(super) fn of_machine(change: &Change<VirtualMachine>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && essence(old) == essence(new)
    {
        return Vec::new();
    }
    with(
        stores,
        &Relation::Source(Key::from_object(&**change.object())),
    )
}

/// The clones that are to be made of a machine of which a pod is gone.
pub(super) fn of_pod(change: &Change<Pod>, machine: &Key, stores: &Stores) -> Vec<Key> {
    match change {
        Change::Deleted { .. } => with(stores, &Relation::Source(machine.clone())),
        Change::Created { .. } | Change::Updated { .. } => Vec::new(),
    }
}

/// The clones that are to be made of a snapshot.
pub(super) fn of_snapshot(snapshot: &VirtualMachineSnapshot, stores: &Stores) -> Vec<Key> {
    with(stores, &Relation::Snapshot(Key::from_object(snapshot)))
}

/// Whether no snapshot of it is taken while it runs.
fn is_paused(vm: &VirtualMachine) -> [bool; 3] {
    [
        vm.annotations().contains_key(names::PAUSED),
        vm.annotations().contains_key(names::ADMIN_PAUSED),
        vm.labels().contains_key(names::PAUSED_LABEL),
    ]
}

/// What decides whether a machine can be copied.
fn essence(vm: &VirtualMachine) -> impl PartialEq + '_ {
    let status = vm.status.as_ref();
    (
        (vm.spec.power_state, vm.spec.run_strategy, vm.spec.running),
        status.map(|status| status.state_change_requests.len()),
        is_paused(vm),
        vm.metadata.uid.as_deref(),
        vm.metadata.deletion_timestamp.is_some(),
        status.and_then(|status| status.power_state),
        status.and_then(|status| status.node_name.as_deref()),
        status.and_then(|status| status.disk_uid.as_deref()),
        status.is_some_and(|status| status.snapshot_revert.is_some()),
        status.is_some_and(|status| is_true(&status.conditions, CREATED)),
    )
}
