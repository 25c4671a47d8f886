//! Maps a change of each kind to the machines and images that it concerns.
//!
//! Invariant: a change that no pass would act on wakes no object: a node's heartbeat, a task's
//! progress.
//! Failure: none; an object that belongs to no machine wakes none.

mod backups;
mod caches;
mod clones;
mod groups;
mod limits;
mod nodes;
mod pods;
mod replica_sets;
mod storage;
mod tasks;

use crds::{
    ClusterVirtualMachineImage, VirtualMachine, VirtualMachineBackup, VirtualMachineBackupSchedule,
    VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage, VirtualMachineImageCache,
    VirtualMachineReplicaSet, VirtualMachineSnapshot,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use crate::reconcile::image::cache;
use crate::reconcile::image::object::Object;
use crate::stores::{Change, Indexed, Key, NetworkAttachmentDefinition, Relation, Stores};

/// A kind whose changes wake machines.
pub trait Wakes: Indexed + Sized {
    /// The machines that a change concerns; those that do not exist are checked too, for what
    /// they left.
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key>;

    /// The images that a change concerns.
    fn wakes_images(_change: &Change<Self>, _stores: &Stores) -> Vec<Key> {
        Vec::new()
    }

    /// The groups that a change concerns.
    fn wakes_groups(_change: &Change<Self>, _stores: &Stores) -> Vec<Key> {
        Vec::new()
    }

    /// The replica sets that a change concerns.
    fn wakes_replica_sets(_change: &Change<Self>, _stores: &Stores) -> Vec<Key> {
        Vec::new()
    }

    /// The backups that a change concerns.
    fn wakes_backups(_change: &Change<Self>, _stores: &Stores) -> Vec<Key> {
        Vec::new()
    }

    /// The schedules of backups that a change concerns.
    fn wakes_backup_schedules(_change: &Change<Self>) -> Vec<Key> {
        Vec::new()
    }

    /// The change as one of a machine.
    fn as_machine(_change: &Change<Self>) -> Option<Change<VirtualMachine>> {
        None
    }

    /// The object as a pod.
    fn as_pod(_object: &Self) -> Option<&Pod> {
        None
    }
}

impl Wakes for VirtualMachine {
    /// Clones that are to be made of it. It wakes itself in any case.
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        clones::of_machine(change, stores)
    }

    fn wakes_groups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        groups::of_machine(change, stores)
    }

    fn wakes_replica_sets(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        replica_sets::of_machine(change, stores)
    }

    fn wakes_backups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        backups::of_machine(change, stores)
    }

    fn as_machine(change: &Change<Self>) -> Option<Change<VirtualMachine>> {
        Some(change.clone())
    }

    /// Its end: the files of its image may be needed no longer.
    fn wakes_images(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        match change {
            Change::Deleted { last, .. } => {
                let mut all = images_of(last);
                all.retain(|key| Object::find(stores, key).is_some());
                all
            }
            Change::Created { .. } | Change::Updated { .. } => Vec::new(),
        }
    }
}

impl Wakes for VirtualMachineClass {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(
            stores,
            &Relation::Class(Key::from_object(&**change.object())),
        )
    }
}

impl Wakes for VirtualMachineImage {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(
            stores,
            &Relation::Image(Key::from_object(&**change.object())),
        )
    }

    fn wakes_images(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        vec![Key::from_object(&**change.object())]
    }
}

impl Wakes for ClusterVirtualMachineImage {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(
            stores,
            &Relation::Image(Key::from_object(&**change.object())),
        )
    }

    fn wakes_images(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        vec![Key::from_object(&**change.object())]
    }
}

impl Wakes for VirtualMachineImageCache {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        caches::machines_of(change, stores)
    }

    fn wakes_images(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        cache::image_of(change.object()).into_iter().collect()
    }
}

/// The images that the machine may be made from.
fn images_of(vm: &VirtualMachine) -> Vec<Key> {
    let all = Relation::named_by(vm).into_iter();
    let images = all.filter_map(|relation| match relation {
        Relation::Image(key) => Some(key),
        _ => None,
    });
    images.collect()
}

impl Wakes for VirtualMachineGroup {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        groups::machines_of(change, stores)
    }

    fn wakes_groups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        groups::of_group(change, stores)
    }
}

impl Wakes for VirtualMachineSnapshot {
    /// Its machine takes it, and deletes it; one that does not exist lets it go. Clones are made of it.
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && old == new
        {
            return Vec::new();
        }
        let snapshot = change.object();
        let namespace = snapshot.namespace().unwrap_or_default();
        let mut all = vec![Key::new(namespace, &snapshot.spec.vm_name)];
        all.extend(clones::of_snapshot(snapshot, stores));
        all
    }
}

impl Wakes for VirtualMachineBackup {
    /// Machines that are to be made from it, and the one whose disk stays linked for it.
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        let machine = backups::machine_of(change);
        if let Change::Updated { old, new, .. } = change
            && backups::result(old) == backups::result(new)
        {
            return machine.into_iter().collect();
        }
        let made = with(
            stores,
            &Relation::Backup(Key::from_object(&**change.object())),
        );
        made.into_iter().chain(machine).collect()
    }

    fn wakes_backups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        backups::of_backup(change, stores)
    }

    fn wakes_backup_schedules(change: &Change<Self>) -> Vec<Key> {
        backups::schedule_of(change)
    }
}

impl Wakes for VirtualMachineBackupSchedule {
    fn wakes(_: &Change<Self>, _: &Stores) -> Vec<Key> {
        Vec::new()
    }

    fn wakes_backup_schedules(change: &Change<Self>) -> Vec<Key> {
        backups::of_schedule(change)
    }
}

impl Wakes for VirtualMachineReplicaSet {
    fn wakes(_: &Change<Self>, _: &Stores) -> Vec<Key> {
        Vec::new()
    }

    fn wakes_replica_sets(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        replica_sets::of_set(change)
    }
}

impl Wakes for PartialObjectMeta<NetworkAttachmentDefinition> {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if is_about_content(change) {
            return Vec::new();
        }
        with(
            stores,
            &Relation::Network(Key::from_object(&**change.object())),
        )
    }
}

/// The object was in the first list: no machine waits for it, and only its name is relevant.
fn is_about_content<K>(change: &Change<K>) -> bool {
    matches!(change, Change::Updated { .. })
}

fn with(stores: &Stores, relation: &Relation) -> Vec<Key> {
    stores.index.vms_with(relation)
}
