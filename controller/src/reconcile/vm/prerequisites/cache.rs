//! What a machine waits for while its node does not have the files of its image.
//!
//! Invariant: reads stores alone: where the node has the files, a machine costs no write. Nothing here
//! keeps a machine back after its placeholder has started, since its node then has them. Labels and
//! annotations of caches on a machine mean nothing, and are removed.
//! Failure: a cache that does not exist, that is of another source, or that does not know its image
//! counts as one that is not ready.

use std::collections::BTreeSet;

use crds::conditions::{self, CACHE_HARDWARE_READY, READY};
use crds::{VirtualMachineImageCache, names};
use kube::ResourceExt;

use super::Image;
use crate::reconcile::image::cache;
use crate::reconcile::vm::observe::{find, placeholder, view};
use crate::reconcile::vm::pass::Pass;

/// Most nodes that a placeholder prefers: each is a term for the scheduler, and where many nodes have the
/// image, the place of a machine hardly decides how soon it starts.
const MOST_NODES: usize = 16;

/// Why the machine cannot go on: the files of its image are not on the node of its placeholder. `None`
/// if they are, if it does not wait for an image there, or if nodes do not pull it by themselves.
pub(crate) fn awaited(pass: &Pass<'_>, image: &Image) -> Option<String> {
    let object = image.object.as_ref().filter(|_| has_caches(pass))?;
    let pod = find::placeholder(pass)?;
    let place = placeholder::place(&pod, &image.name).filter(|place| !place.has_image)?;
    let name = cache::name(object.kind(), &object.key());
    let found = cache::find(pass.ctx, object);
    let found = found.filter(|found| cache::is_of(found, object, &image.name));
    match found {
        Some(found) => obstacle(&found, place.node),
        None => Some(format!("image cache {name} does not exist yet")),
    }
}

/// Whether the machine waits so that only another object can wake it.
pub(crate) fn is_awaited(pass: &Pass<'_>) -> bool {
    let image = super::image(pass).filter(|_| !pass.is_created());
    image.is_some_and(|image| awaited(pass, &image).is_some())
}

/// The nodes that a placeholder prefers; none if they are many.
pub(crate) fn nodes(pass: &Pass<'_>, image: &Image) -> Vec<String> {
    if !has_caches(pass) {
        return Vec::new();
    }
    let mut usable = holders(pass, image);
    if usable.len() > MOST_NODES {
        usable.clear();
    }
    usable
}

/// The nodes that have the image and can take a machine, as far as they are known.
pub(crate) fn holders(pass: &Pass<'_>, image: &Image) -> Vec<String> {
    let Some(object) = &image.object else {
        return Vec::new();
    };
    let found = cache::find(pass.ctx, object);
    let found = found.filter(|found| cache::is_of(found, object, &image.name));
    let ready = found.iter().flat_map(|found| cache::nodes_with(found));
    // kubelet reports nodes that no machine has needed yet.
    let status = object.status().filter(|status| object.is_of_source(status));
    let reported = status.iter().flat_map(|status| &status.node_names);
    let all: BTreeSet<_> = ready.chain(reported.map(String::as_str)).collect();
    let can_take = |node: &&str| {
        let spec = view::node(pass, node).and_then(|node| node.spec.clone());
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        !is_cordoned && view::is_ready(pass, node)
    };
    let usable = all.into_iter().filter(can_take);
    usable.map(str::to_owned).collect()
}

/// Removes what names a cache on the machine.
pub(crate) fn forget(pass: &mut Pass<'_>) {
    let meta = &mut pass.vm.metadata;
    if let Some(labels) = &mut meta.labels {
        labels.remove(names::IMAGE_CACHE_LABEL);
    }
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(names::IMAGE_CACHE_LOCATION);
    }
}

fn has_caches(pass: &Pass<'_>) -> bool {
    pass.ctx.config.machines.image_caches && pass.mode.is_fast()
}

fn obstacle(cache: &VirtualMachineImageCache, node: &str) -> Option<String> {
    let name = cache.name_any();
    let Some(status) = &cache.status else {
        return Some(format!("image cache {name} has no status yet"));
    };
    let hardware = conditions::find(&status.conditions, CACHE_HARDWARE_READY);
    if let Some(hardware) = hardware.filter(|hardware| hardware.status == "False") {
        return Some(format!("image cache {name}: {}", hardware.message));
    }
    let metadata = status.metadata.as_ref();
    let known = metadata.and_then(|metadata| metadata.provider_version.as_deref());
    if known.is_some_and(|known| known != cache.spec.provider_version) {
        return Some(format!("image cache {name} describes another version"));
    }
    let location = status.locations.iter().find(|at| at.node == node);
    let ready = location.and_then(|at| conditions::find(&at.conditions, READY));
    match ready {
        Some(ready) if ready.status == "True" => match hardware {
            Some(_) => None,
            None => Some(format!("image cache {name} does not know the image yet")),
        },
        Some(ready) => Some(format!("image cache {name}: {}", ready.message)),
        None => Some(format!("image cache {name} does not have node {node} yet")),
    }
}
