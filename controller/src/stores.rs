//! The stores that the watches keep up to date, and their indexes.
//!
//! Invariant: an object is in its store before a change is announced; an index entry may be ahead
//! of or behind its store, so whatever it names is looked up, never trusted to exist.
//! Failure: none of its own; a watch that fails leaves the last known objects.

mod agents;
mod data_volume;
mod feed;
mod index;
mod network;
#[cfg(test)]
mod tests;
mod volume_snapshot;

use std::fmt;
use std::sync::Arc;

use crds::{
    ClusterVirtualMachineImage, VirtualMachine, VirtualMachineBackup, VirtualMachineBackupSchedule,
    VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage, VirtualMachineImageCache,
    VirtualMachineReplicaSet, VirtualMachineSnapshot, VirtualMachineTask,
};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};

pub use agents::Agents;
pub use data_volume::{DataVolume, DataVolumeSpec, DataVolumeStatus};
pub use feed::{Change, Feed};
pub use index::{
    Affiliation, Index, Indexed, Relation, backup_of, clone_snapshot, is_unmade_clone, network,
    numbered, own_root_claim,
};
pub use network::NetworkAttachmentDefinition;
pub use volume_snapshot::{
    VolumeSnapshot, VolumeSnapshotSource, VolumeSnapshotSpec, VolumeSnapshotStatus,
};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key with these parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of an object.
    pub fn from_object(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }

    /// What stores know it by.
    #[must_use]
    pub fn reference<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        let reference = ObjectRef::new(&self.name);
        if self.namespace.is_empty() {
            reference
        } else {
            reference.within(&self.namespace)
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

macro_rules! stores {
    ($( $(#[doc = $doc:literal])+ $name:ident: $kind:ty; )+) => {
        /// What the watches keep up to date.
        #[allow(missing_debug_implementations, reason = "stores have none")]
        #[derive(Clone)]
        pub struct Stores {
            $( $(#[doc = $doc])+ pub $name: Store<$kind>, )+
            /// Which objects belong together.
            pub index: Index,
            /// Which agents of nodes live.
            pub agents: Agents,
        }

        /// The writing side of [`Stores`]: one feed per watch.
        #[allow(missing_debug_implementations, reason = "stores have none")]
        pub struct Feeds {
            $( $(#[doc = $doc])+ pub $name: Feed<$kind>, )+
        }

        impl Stores {
            /// Empty stores, and what feeds them.
            #[must_use]
            pub fn new() -> (Self, Feeds) {
                let index = Index::default();
                let feeds = Feeds { $( $name: Feed::new(index.clone()), )+ };
                let agents = Agents::default();
                let stores = Self { $( $name: feeds.$name.store(), )+ index, agents };
                (stores, feeds)
            }

            /// Returns when every store has been filled once. Only one task may wait at a time: a
            /// store wakes the last one that began to wait.
            ///
            /// # Errors
            ///
            /// The name of a store whose feed was dropped before that.
            pub async fn ready(&self) -> Result<(), &'static str> {
                $( self.$name.wait_until_ready().await.map_err(|_| stringify!($name))?; )+
                Ok(())
            }

            /// Names of the stores and how many objects each holds.
            #[must_use]
            pub fn sizes(&self) -> Vec<(&'static str, usize)> {
                vec![$( (stringify!($name), self.$name.len()), )+]
            }
        }
    };
}

stores! {
    /// Machines.
    vms: VirtualMachine;
    /// Pods that carry our role label.
    pods: Pod;
    /// Tasks.
    tasks: VirtualMachineTask;
    /// Classes.
    classes: VirtualMachineClass;
    /// Images of namespaces.
    images: VirtualMachineImage;
    /// Images of the cluster.
    cluster_images: ClusterVirtualMachineImage;
    /// Which nodes have which image.
    image_caches: VirtualMachineImageCache;
    /// Groups.
    groups: VirtualMachineGroup;
    /// Replica sets.
    replica_sets: VirtualMachineReplicaSet;
    /// Snapshots of machines.
    snapshots: VirtualMachineSnapshot;
    /// Backups of machines.
    backups: VirtualMachineBackup;
    /// Schedules of backups.
    backup_schedules: VirtualMachineBackupSchedule;
    /// Nodes; of their images only those of ours.
    nodes: Node;
    /// Claims.
    claims: PersistentVolumeClaim;
    /// CDI's volumes. Empty as long as that API is not served.
    data_volumes: DataVolume;
    /// Snapshots of claims that are parts of snapshots of machines. Empty as long as that API is not served.
    volume_snapshots: VolumeSnapshot;
    /// Which networks beyond the pods' own exist. Empty as long as that API is not served.
    networks: PartialObjectMeta<NetworkAttachmentDefinition>;
    /// Storage classes.
    storage_classes: StorageClass;
    /// What namespaces may use, and use.
    quotas: ResourceQuota;
    /// Which limit ranges exist.
    limit_ranges: PartialObjectMeta<LimitRange>;
    /// Which labels namespaces have.
    namespaces: PartialObjectMeta<Namespace>;
}

impl Stores {
    /// The machine with this key.
    #[must_use]
    pub fn vm(&self, key: &Key) -> Option<Arc<VirtualMachine>> {
        self.vms.get(&key.reference())
    }

    /// The storage class of this name.
    #[must_use]
    pub fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.storage_classes.get(&ObjectRef::new(name))
    }

    /// The tasks of the machine, or of the image, with this UID, by name.
    #[must_use]
    pub fn tasks_of(&self, vm_uid: &str) -> Vec<Arc<VirtualMachineTask>> {
        self.tasks_at(&self.index.tasks_of(vm_uid))
    }

    /// The tasks of the machines that have or had this name.
    #[must_use]
    pub fn tasks_named(&self, vm: &Key) -> Vec<Arc<VirtualMachineTask>> {
        self.tasks_at(&self.index.tasks_named(vm))
    }

    fn tasks_at(&self, keys: &[Key]) -> Vec<Arc<VirtualMachineTask>> {
        let all = keys.iter();
        all.filter_map(|key| self.tasks.get(&key.reference()))
            .collect()
    }

    /// The pods of the machine with this UID, by name; of both roles.
    #[must_use]
    pub fn pods_of(&self, vm_uid: &str) -> Vec<Arc<Pod>> {
        let keys = self.index.pods_of(vm_uid);
        let found = keys
            .iter()
            .filter_map(|key| self.pods.get(&key.reference()));
        found.collect()
    }

    /// The snapshots that name this machine, by name.
    #[must_use]
    pub fn snapshots_of(&self, vm: &Key) -> Vec<Arc<VirtualMachineSnapshot>> {
        let keys = self.index.snapshots_of(vm);
        let found = keys
            .iter()
            .filter_map(|key| self.snapshots.get(&key.reference()));
        found.collect()
    }

    /// The backups that name this machine, by name.
    #[must_use]
    pub fn backups_of(&self, vm: &Key) -> Vec<Arc<VirtualMachineBackup>> {
        self.backups_at(&self.index.backups_of(vm))
    }

    /// The backups that this schedule has created, by name.
    #[must_use]
    pub fn backups_of_schedule(&self, schedule: &Key) -> Vec<Arc<VirtualMachineBackup>> {
        self.backups_at(&self.index.backups_of_schedule(schedule))
    }

    fn backups_at(&self, keys: &[Key]) -> Vec<Arc<VirtualMachineBackup>> {
        let all = keys.iter();
        all.filter_map(|key| self.backups.get(&key.reference()))
            .collect()
    }

    /// The tasks that the backup of this name owns, by name.
    #[must_use]
    pub fn tasks_of_backup(&self, backup: &Key) -> Vec<Arc<VirtualMachineTask>> {
        self.tasks_at(&self.index.tasks_of_backup(backup))
    }

    /// The machines that name this object, by key.
    #[must_use]
    pub fn vms_with(&self, relation: &Relation) -> Vec<Arc<VirtualMachine>> {
        let keys = self.index.vms_with(relation);
        keys.iter().filter_map(|key| self.vm(key)).collect()
    }
}
