//! Machines and images that a change of claims, of their snapshots or of storage classes concerns.
//!
//! Invariant: a change of a class concerns the machines with claims of it, and those that are to get some.
//! Failure: none; what belongs to no machine wakes none.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::{Wakes, backups, replica_sets, with};
use crate::reconcile::image::object::Object;
use crate::reconcile::vm::VOLUME_MODE;
use crate::stores::{Change, DataVolume, Key, Relation, Stores, VolumeSnapshot};

impl Wakes for PersistentVolumeClaim {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(
            stores,
            &Relation::Claim(Key::from_object(&**change.object())),
        )
    }

    fn wakes_backups(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        backups::of_claim(change, stores)
    }

    fn wakes_replica_sets(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        replica_sets::of_claim(change, stores)
    }

    fn wakes_images(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && old.spec == new.spec
            && old.status == new.status
        {
            return Vec::new();
        }
        let claim = Key::from_object(&**change.object());
        let is_in_it = |image: &Object| {
            image.claim() == Some(&claim.name) && image.key().namespace == claim.namespace
        };
        let all = Object::all(stores).filter(is_in_it);
        all.map(|image| image.key()).collect()
    }
}

impl Wakes for DataVolume {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        with(
            stores,
            &Relation::DataVolume(Key::from_object(&**change.object())),
        )
    }
}

impl Wakes for VolumeSnapshot {
    /// The machine of the snapshot that it is a part of.
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && old.status == new.status
        {
            return Vec::new();
        }
        let part = change.object();
        let namespace = part.namespace().unwrap_or_default();
        let mut owners = part.owner_references().iter();
        let owner = owners.find(|owner| owner.kind == "VirtualMachineSnapshot");
        let snapshot = owner.and_then(|owner| {
            let key = Key::new(&namespace, &owner.name);
            stores.snapshots.get(&key.reference())
        });
        let machine = snapshot.map(|snapshot| Key::new(namespace, &snapshot.spec.vm_name));
        machine.into_iter().collect()
    }
}

impl Wakes for StorageClass {
    fn wakes(change: &Change<Self>, stores: &Stores) -> Vec<Key> {
        if let Change::Updated { old, new, .. } = change
            && mutable(old) == mutable(new)
        {
            return Vec::new();
        }
        let name = change.object().name_any();
        let is_of_it = |claim: &Arc<PersistentVolumeClaim>| {
            let spec = claim.spec.as_ref();
            spec.and_then(|spec| spec.storage_class_name.as_deref()) == Some(&name)
        };
        let all = stores.claims.state().into_iter();
        let claims = all
            .filter(is_of_it)
            .map(|claim| Relation::Claim(Key::from_object(&*claim)));
        // The class specifies whether a claim without a volume waits for its first pod.
        let mut all: BTreeSet<_> = claims.flat_map(|claim| with(stores, &claim)).collect();
        all.extend(with(stores, &Relation::StorageClass(name)));
        all.into_iter().collect()
    }
}

/// What machines go by in a storage class, and what can change in it.
fn mutable(class: &StorageClass) -> impl PartialEq + '_ {
    let mode = class.annotations().get(VOLUME_MODE);
    (mode, class.allow_volume_expansion)
}
