//! What a change of a node concerns: the machines that it has, and the images whose files it lists.
//!
//! Invariant: a heartbeat and a measurement wake nothing.
//! Failure: none.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::pods::machine_of;
use super::{Wakes, backups, with};
use crate::intake::is_ready;
use crate::reconcile::image::object::Object;
use crate::reconcile::image::{cache, name, names, repository};
use crate::stores::{Change, Key, Relation, Stores};

impl Wakes for Node {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && facts(old) == facts(new)
        {
            return Vec::new();
        }
        let name = change.object().name_any();
        // A pod may be elsewhere than the status says: the machine is deleted before a pass has seen it
        // there, say, and then waits for this node.
        let is_here = |pod: &Pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.node_name.as_ref()) == Some(&name)
        };
        let pods = stores.pods.state().into_iter();
        let pods = pods.filter(|pod| is_here(pod));
        let mut all: BTreeSet<_> = pods.filter_map(|pod| machine_of(&pod)).collect();
        all.extend(with(stores, &Relation::Node(name)));
        all.into_iter().collect()
    }

    fn wakes_backups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        backups::of_node(change, stores)
    }

    fn wakes_images(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        let none = BTreeSet::new();
        let object = change.object();
        let (before, now, is_another) = match change {
            Change::Created { .. } => (none, names(object), true),
            Change::Updated { old, new, .. } if old == new => return Vec::new(),
            Change::Updated { old, new, .. } => (names(old), names(new), facts(old) != facts(new)),
            Change::Deleted { last, .. } => (names(last), none, true),
        };
        let changed: BTreeSet<_> = before.symmetric_difference(&now).copied().collect();
        let changed: BTreeSet<_> = changed.into_iter().map(repository).collect();
        if changed.is_empty() && !is_another {
            return Vec::new();
        }
        let cached = if is_another {
            cache::images_on(stores, &object.name_any())
        } else {
            BTreeSet::new()
        };
        let is_it = |image: &Object| {
            let named = name::from_source(image.source());
            let is_listed = named.is_ok_and(|named| changed.contains(repository(&named.name)));
            is_listed || is_another && (image.pre_pull().is_some() || cached.contains(&image.key()))
        };
        Object::all(stores)
            .filter(is_it)
            .map(|image| image.key())
            .collect()
    }
}

/// A node without its heartbeat, its images and its measurements.
fn facts(node: &Node) -> impl PartialEq + '_ {
    let spec = node.spec.as_ref();
    (
        is_ready(node),
        spec.and_then(|spec| spec.unschedulable),
        spec.and_then(|spec| spec.taints.as_ref()),
        node.labels(),
        node.metadata.deletion_timestamp.is_some(),
    )
}
