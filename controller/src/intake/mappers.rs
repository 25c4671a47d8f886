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
mod replica_sets;
mod storage;

use std::collections::BTreeSet;

use crds::names::{PLACEHOLDER_OF, POD_ROLE_LABEL};
use crds::{
    ClusterVirtualMachineImage, GROUP, TaskKind, VirtualMachine, VirtualMachineBackup,
    VirtualMachineBackupSchedule, VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage,
    VirtualMachineImageCache, VirtualMachineReplicaSet, VirtualMachineSnapshot, VirtualMachineTask,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::is_ready;
use crate::reconcile::image::name;
use crate::reconcile::image::object::{CLUSTER, Object};
use crate::reconcile::image::{STEP, cache, names, repository};
use crate::reconcile::vm::placeholder;
use crate::stores::{Change, Indexed, Key, NetworkAttachmentDefinition, Relation, Stores};

/// Kind of an image cache.
const CACHE: &str = "VirtualMachineImageCache";

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

impl Wakes for Pod {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        let Some(machine) = machine_of(change.object()) else {
            return Vec::new();
        };
        let clones = clones::of_pod(change, &machine, stores);
        std::iter::once(machine).chain(clones).collect()
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
fn machine_of(pod: &Pod) -> Option<Key> {
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
        _ => &name,
    };
    Some(Key::new(namespace, machine))
}

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
            let named = name::of(image.source());
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

impl Wakes for VirtualMachineClass {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(stores, &Relation::Class(Key::of(&**change.object())))
    }
}

impl Wakes for VirtualMachineImage {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(stores, &Relation::Image(Key::of(&**change.object())))
    }

    fn wakes_images(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        vec![Key::of(&**change.object())]
    }
}

impl Wakes for ClusterVirtualMachineImage {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(stores, &Relation::Image(Key::of(&**change.object())))
    }

    fn wakes_images(change: &Change<Self>, _: &Stores) -> Vec<Key> {
        vec![Key::of(&**change.object())]
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
    let all = Relation::of(vm).into_iter();
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
        let made = with(stores, &Relation::Backup(Key::of(&**change.object())));
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
        with(stores, &Relation::Network(Key::of(&**change.object())))
    }
}

/// The object was in the first list: no machine waits for it, and only its name is relevant.
fn is_about_content<K>(change: &Change<K>) -> bool {
    matches!(change, Change::Updated { .. })
}

fn with(stores: &Stores, relation: &Relation) -> Vec<Key> {
    stores.index.vms_with(relation)
}
