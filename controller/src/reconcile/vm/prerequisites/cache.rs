//! Waits for an image cache.
//!
//! Invariant: the label stays on a machine exactly as long as it waits; the cache's watch wakes it
//! by that label.
//! Failure: a cache that does not exist counts as one that is not ready.

use crds::conditions::{self, Status};
use crds::{VirtualMachineImageCacheStatus, names};
use kube::ResourceExt;

use crate::context::Key;
use crate::reconcile::vm::pass::Pass;

/// Condition of a cache: the image's own description is known.
const HARDWARE_READY: &str = "VirtualMachineImageCacheHardwareReady";

/// The cache that the machine waits for by its label, if there are caches: without them the label
/// says nothing.
pub(crate) fn awaited(pass: &Pass<'_>) -> Option<String> {
    let has_caches = pass.ctx.config.machines.image_caches && pass.mode.is_fast();
    let name = pass.vm.labels().get(names::IMAGE_CACHE_LABEL);
    name.filter(|_| has_caches).cloned()
}

/// Whether the machine may continue; a condition says why it may not.
pub(crate) fn lets_pass(pass: &mut Pass<'_>) -> bool {
    let Some(name) = awaited(pass) else {
        return true;
    };
    let may_pass = is_ready(pass, &name);
    if !may_pass {
        let message = format!("waits for image cache {name}");
        let kind = conditions::IMAGE_CACHE_READY;
        pass.condition(kind, Status::False, "NotReady", &message);
    }
    may_pass
}

/// Whether the cache is ready; takes label and annotation away when it is.
fn is_ready(pass: &mut Pass<'_>, name: &str) -> bool {
    let Some(status) = read(pass, name) else {
        return false;
    };
    if !conditions::is_true(&status.conditions, HARDWARE_READY) {
        return false;
    }
    let location = pass.vm.annotations().get(names::IMAGE_CACHE_LOCATION);
    let Some(location) = location.cloned() else {
        forget(pass);
        return true;
    };
    let parts: Vec<_> = location.split(',').collect();
    let [node, store, format] = parts[..] else {
        // A value in another format: requested again by the next pass.
        forget(pass);
        return false;
    };
    let mut all = status.locations.iter();
    let here = all.find(|l| l.node == node && l.store == store && l.format == format);
    let is_ready = here.is_some_and(|l| conditions::is_true(&l.conditions, conditions::READY));
    if is_ready {
        forget(pass);
    }
    is_ready
}

/// Lets the machine wait for the cache `name`.
pub(crate) fn wait_for(pass: &mut Pass<'_>, name: &str) {
    let labels = pass.vm.labels_mut();
    labels.insert(names::IMAGE_CACHE_LABEL.to_owned(), name.to_owned());
    let message = format!("waits for image cache {name}");
    let kind = conditions::IMAGE_CACHE_READY;
    pass.condition(kind, Status::False, "NotReady", &message);
}

/// The cache's description of the image `id` is complete, or there are no caches.
pub(crate) fn knows(pass: &Pass<'_>, name: &str) -> bool {
    let status = read(pass, name);
    status.is_some_and(|s| conditions::is_true(&s.conditions, HARDWARE_READY))
}

fn read(pass: &Pass<'_>, name: &str) -> Option<VirtualMachineImageCacheStatus> {
    let key = Key::new(&pass.ctx.config.namespace, name);
    let found = pass.ctx.stores.image_caches.get(&key.reference())?;
    found.status.clone()
}

fn forget(pass: &mut Pass<'_>) {
    pass.vm.labels_mut().remove(names::IMAGE_CACHE_LABEL);
    pass.vm
        .annotations_mut()
        .remove(names::IMAGE_CACHE_LOCATION);
}
