//! What a change of a task concerns: the machine, the backup or the image that it works for.
//!
//! Invariant: progress alone wakes no machine; an image and a backup it wakes only in steps that they show.
//! Failure: none; a task without an owner wakes no image.

use crds::{TaskKind, VirtualMachineTask};
use kube::ResourceExt;

use super::{Wakes, backups};
use crate::reconcile::image::object::CLUSTER;
use crate::reconcile::image::{STEP, cache};
use crate::stores::{Change, Key, Stores};

/// Kind of an image cache.
const CACHE: &str = "VirtualMachineImageCache";

impl Wakes for VirtualMachineTask {
    fn wakes(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && essence(old) == essence(new)
        {
            return Vec::new();
        }
        let task = change.object();
        if task.spec.kind.is_of_image() {
            Vec::new()
        } else {
            vec![Key::new(task.vm_namespace(), &task.spec.vm_name)]
        }
    }

    fn wakes_backups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && essence(old) == essence(new)
            && backups::tenths(old) == backups::tenths(new)
        {
            return Vec::new();
        }
        backups::of_task(change, stores)
    }

    fn wakes_images(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && essence(old) == essence(new)
            && percent(old) == percent(new)
        {
            return Vec::new();
        }
        let task = change.object();
        let mut owners = task.owner_references().iter();
        let owner = owners.find(|_| task.spec.kind.is_of_image());
        let namespace = task.namespace().unwrap_or_default();
        let key = owner.and_then(|owner| match owner.kind.as_str() {
            CLUSTER => Some(Key::new("", &owner.name)),
            CACHE => {
                let key = Key::new(namespace, &owner.name);
                cache::image_of(&*stores.image_caches.get(&key.reference())?)
            }
            _ => Some(Key::new(namespace, &owner.name)),
        });
        key.into_iter().collect()
    }
}

/// The progress that the cache of an image shows.
fn percent(task: &VirtualMachineTask) -> u32 {
    let is_pull = task.spec.kind == TaskKind::PullImage;
    let exact = task.status.as_ref().filter(|_| is_pull);
    exact.map_or(0, |status| status.progress_percent / STEP)
}

/// A task without its progress, which people read and passes do not.
fn essence(task: &VirtualMachineTask) -> impl PartialEq {
    let status = task.status.clone().map(|mut status| {
        status.progress_percent = 0;
        status.message.clear();
        status
    });
    let is_deleting = task.metadata.deletion_timestamp.is_some();
    (task.spec.clone(), status, is_deleting)
}
