//! What a change of a pod concerns: its machine, the images that a placeholder brings, and clones.
//!
//! Invariant: an image wakes only when a placeholder's node or its having the image changes.
//! Failure: none; a pod that belongs to no machine wakes none.

use crds::GROUP;
use crds::names::{PLACEHOLDER_OF, POD_ROLE_LABEL};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Wakes, clones, images_of};
use crate::reconcile::image::object::Object;
use crate::reconcile::vm::{placeholder, pods};
use crate::stores::{Change, Key, Stores};

impl Wakes for Pod {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        let Some(machine) = machine_of(change.object()) else {
            return Vec::new();
        };
        let clones = clones::of_pod(change, &machine, stores);
        std::iter::once(machine).chain(clones).collect()
    }

    /// The backup that needs the claim which the pod has mounted.
    fn wakes_backups(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        let pod = change.object();
        let prefix = format!("{GROUP}/");
        let mut owners = pod.owner_references().iter();
        let owner = owners.find(|owner| {
            owner.kind == "VirtualMachineBackup" && owner.api_version.starts_with(&prefix)
        });
        let namespace = pod.namespace().unwrap_or_default();
        let key = owner.map(|owner| Key::new(namespace, &owner.name));
        key.into_iter().collect()
    }

    fn as_pod(object: &Self) -> Option<&Pod> {
        Some(object)
    }

    /// Where a placeholder is, and whether it has started.
    fn wakes_images(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        let image = |pod: &Pod| {
            let container = pod.spec.as_ref()?.containers.first()?;
            container.image.clone()
        };
        let state = |pod: &Pod| {
            let image = image(pod)?;
            let place = placeholder::place(pod, &image)?;
            Some((place.node.to_owned(), place.has_image))
        };
        let has_changed = match change {
            Change::Created { object, .. } => state(object).is_some(),
            Change::Updated { old, new, .. } => state(old) != state(new),
            Change::Deleted { last, .. } => state(last).is_some(),
        };
        let machine = machine_of(change.object()).filter(|_| has_changed);
        let vm = machine.and_then(|key| stores.vm(&key));
        let mut all = vm.map(|vm| images_of(&vm)).unwrap_or_default();
        all.retain(|key| Object::find(stores, key).is_some());
        all
    }
}

/// By owner; an orphan by its name, since the machine of that name waits for it to go.
pub(super) fn machine_of(pod: &Pod) -> Option<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let prefix = format!("{GROUP}/");
    let owner = pod
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "VirtualMachine" && owner.api_version.starts_with(&prefix));
    if let Some(owner) = owner {
        return Some(Key::new(namespace, &owner.name));
    }
    let name = pod.name_any();
    let machine = match pod.labels().get(POD_ROLE_LABEL)?.as_str() {
        "provision" => name.rsplit_once(PLACEHOLDER_OF)?.0,
        pods::BACKUP_TARGET => return None,
        _ => &name,
    };
    Some(Key::new(namespace, machine))
}
