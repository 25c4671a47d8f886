//! Which machines a change of an image cache concerns.
//!
//! Invariant: a machine with a disk is never woken. The state of a location wakes the machines whose
//! placeholder is on that node, so that the progress of one node is no pass of the machines on all others.
//! Failure: none; a placeholder that the stores do not show yet wakes its machine by its own event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::conditions::{self, CACHE_HARDWARE_READY, CREATED, READY};
use crds::{VirtualMachine, VirtualMachineImageCache};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::reconcile::image::cache;
use crate::stores::{Change, Key, Relation, Stores};

/// The machines of the image that wait for what has changed.
pub(super) fn machines_of(change: &Change<VirtualMachineImageCache>, stores: &Stores) -> Vec<Key> {
    let Some(image) = cache::image_of(change.object()) else {
        return Vec::new();
    };
    let nodes = match change {
        Change::Updated { old, new, .. } if essence(old) == essence(new) => Some(changed(old, new)),
        _ => None,
    };
    if nodes.as_ref().is_some_and(BTreeSet::is_empty) {
        return Vec::new();
    }
    let is_concerned = |vm: &Arc<VirtualMachine>| {
        let is_there = |nodes| is_on(stores, vm, nodes);
        waits_for_disk(vm) && nodes.as_ref().is_none_or(is_there)
    };
    let mut all = stores.index.vms_with(&Relation::Image(image));
    all.retain(|key| stores.vm(key).is_some_and(|vm| is_concerned(&vm)));
    all
}

/// What every machine goes by, wherever its placeholder is.
fn essence(cache: &VirtualMachineImageCache) -> impl PartialEq + '_ {
    let status = cache.status.as_ref();
    let all = status.map(|status| status.conditions.as_slice());
    let hardware = all.and_then(|all| conditions::find(all, CACHE_HARDWARE_READY));
    (
        &cache.metadata.uid,
        &cache.spec.provider_version,
        status.map(|status| &status.metadata),
        hardware.map(|found| (&found.status, &found.message)),
    )
}

/// The nodes whose location is in another state.
fn changed<'a>(
    old: &'a VirtualMachineImageCache,
    new: &'a VirtualMachineImageCache,
) -> BTreeSet<&'a str> {
    let before = states(old);
    let now = states(new);
    let all = before.keys().chain(now.keys()).copied();
    all.filter(|node| before.get(node) != now.get(node))
        .collect()
}

/// Status and message of each location, by node.
fn states(cache: &VirtualMachineImageCache) -> BTreeMap<&str, Option<(&str, &str)>> {
    let all = cache.status.iter().flat_map(|status| &status.locations);
    all.map(|location| {
        let ready = conditions::find(&location.conditions, READY);
        let ready = ready.map(|ready| (ready.status.as_str(), ready.message.as_str()));
        (location.node.as_str(), ready)
    })
    .collect()
}

/// A machine without a disk has no pod but its placeholder.
fn is_on(stores: &Stores, vm: &VirtualMachine, nodes: &BTreeSet<&str>) -> bool {
    let node = |pod: &Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let pods = stores.pods_of(&vm.uid().unwrap_or_default());
    let mut places = pods.iter().filter_map(node);
    places.any(|node| nodes.contains(node.as_str()))
}

/// Its root disk does not exist yet.
fn waits_for_disk(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    !status.is_some_and(|status| conditions::is_true(&status.conditions, CREATED))
}
