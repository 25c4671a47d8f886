//! Indexes: which machines name an object, which tasks and pods a machine has.
//!
//! Invariant: what an object is filed under is a function of that object alone; filing it again
//! first takes it out of where it was.
//! Failure: none; an object without the label or field is filed nowhere.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crds::names::{BACKUP_SCHEDULE_LABEL, VM_UID_LABEL};
use crds::{
    ClusterVirtualMachineImage, VirtualMachine, VirtualMachineBackup, VirtualMachineBackupSchedule,
    VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage, VirtualMachineImageCache,
    VirtualMachineReplicaSet, VirtualMachineSnapshot, VirtualMachineTask,
};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use super::{DataVolume, Key, NetworkAttachmentDefinition, VolumeSnapshot};
use table::Table;

mod affiliation;
mod relation;
mod table;

pub use affiliation::Affiliation;
pub use relation::{Relation, clone_snapshot, is_unmade_clone, network, own_root_claim};

/// The replica set and the index that a machine's name consists of, `SET-INDEX`.
#[must_use]
pub fn numbered(name: &str) -> Option<(&str, u32)> {
    let (set, text) = name.rsplit_once('-')?;
    let index: u32 = text.parse().ok()?;
    (!set.is_empty() && index.to_string() == text).then_some((set, index))
}

/// Which objects belong together. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<RwLock<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    vms: Table<Relation>,
    /// By the UID of their machine, or of their image.
    tasks: Table<String>,
    /// Those of machines by the name of their machine, whichever machine of that name it was.
    named: Table<Key>,
    pods: Table<String>,
    groups: Table<Affiliation>,
    /// Machines by the replica set that their names are of, whether or not there is one.
    numbered: Table<Key>,
    /// By the machine that they name.
    snapshots: Table<Key>,
    /// By the machine that they name.
    backups: Table<Key>,
    /// Backups by the schedule that has created them.
    scheduled: Table<Key>,
    /// Tasks by the backup that owns them.
    backup_tasks: Table<Key>,
}

impl Index {
    /// Keys of the machines that name this object.
    #[must_use]
    pub fn vms_with(&self, relation: &Relation) -> Vec<Key> {
        self.read().vms.get(relation)
    }

    /// Keys of the tasks of the machine, or of the image, with this UID.
    #[must_use]
    pub fn tasks_of(&self, vm_uid: &str) -> Vec<Key> {
        self.read().tasks.get(&vm_uid.to_owned())
    }

    /// Keys of the tasks of the machines that have or had this name.
    #[must_use]
    pub fn tasks_named(&self, vm: &Key) -> Vec<Key> {
        self.read().named.get(vm)
    }

    /// Keys of the pods of the machine with this UID.
    #[must_use]
    pub fn pods_of(&self, vm_uid: &str) -> Vec<Key> {
        self.read().pods.get(&vm_uid.to_owned())
    }

    /// Keys of the groups that name this one, or this machine, so.
    #[must_use]
    pub fn groups_with(&self, affiliation: &Affiliation) -> Vec<Key> {
        self.read().groups.get(affiliation)
    }

    /// Keys of the snapshots that name this machine.
    #[must_use]
    pub fn snapshots_of(&self, vm: &Key) -> Vec<Key> {
        self.read().snapshots.get(vm)
    }

    /// Keys of the backups that name this machine.
    #[must_use]
    pub fn backups_of(&self, vm: &Key) -> Vec<Key> {
        self.read().backups.get(vm)
    }

    /// Keys of the backups that this schedule has created.
    #[must_use]
    pub fn backups_of_schedule(&self, schedule: &Key) -> Vec<Key> {
        self.read().scheduled.get(schedule)
    }

    /// Keys of the tasks that the backup of this name owns.
    #[must_use]
    pub fn tasks_of_backup(&self, backup: &Key) -> Vec<Key> {
        self.read().backup_tasks.get(backup)
    }

    /// Keys of the machines with names of this replica set, by name.
    #[must_use]
    pub fn vms_numbered(&self, set: &Key) -> Vec<Key> {
        self.read().numbered.get(set)
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kind that is kept in a store, perhaps with secondary keys.
pub trait Indexed: Resource<DynamicType = ()> {
    /// Files the object; `gone`: takes it out.
    fn file(_object: &Self, _gone: bool, _index: &Index) {}
}

impl Indexed for VirtualMachine {
    fn file(object: &Self, gone: bool, index: &Index) {
        let relations = (!gone).then(|| Relation::named_by(object));
        let key = Key::from_object(object);
        let set = numbered(&key.name).filter(|_| !gone);
        let set = set.map(|(set, _)| Key::new(&key.namespace, set));
        let mut tables = index.write();
        tables.vms.set(&key, relations.unwrap_or_default());
        tables.numbered.set(&key, set.into_iter().collect());
    }
}

impl Indexed for VirtualMachineTask {
    fn file(object: &Self, gone: bool, index: &Index) {
        let key = Key::from_object(object);
        let spec = &object.spec;
        let uid = (!gone).then(|| spec.vm_uid.clone());
        let is_of_machine = !spec.kind.is_of_image();
        let vm = (!gone && is_of_machine).then(|| Key::new(object.vm_namespace(), &spec.vm_name));
        let backup = backup_of(object).filter(|_| !gone);
        let mut tables = index.write();
        tables.backup_tasks.set(&key, backup.into_iter().collect());
        tables.tasks.set(&key, uid.into_iter().collect());
        tables.named.set(&key, vm.into_iter().collect());
    }
}

impl Indexed for Pod {
    fn file(object: &Self, gone: bool, index: &Index) {
        let uid = object.labels().get(VM_UID_LABEL).filter(|_| !gone);
        index.write().pods.set(
            &Key::from_object(object),
            uid.cloned().into_iter().collect(),
        );
    }
}

impl Indexed for VirtualMachineGroup {
    fn file(object: &Self, gone: bool, index: &Index) {
        let affiliations = (!gone).then(|| Affiliation::all(object));
        let mut tables = index.write();
        let groups = &mut tables.groups;
        groups.set(&Key::from_object(object), affiliations.unwrap_or_default());
    }
}

impl Indexed for VirtualMachineSnapshot {
    fn file(object: &Self, gone: bool, index: &Index) {
        let key = Key::from_object(object);
        let vm = Key::new(&key.namespace, &object.spec.vm_name);
        let vm = (!gone).then_some(vm);
        index.write().snapshots.set(&key, vm.into_iter().collect());
    }
}

impl Indexed for VirtualMachineBackup {
    fn file(object: &Self, gone: bool, index: &Index) {
        let key = Key::from_object(object);
        let vm = Key::new(&key.namespace, &object.spec.vm_name);
        let vm = (!gone).then_some(vm);
        let schedule = object.labels().get(BACKUP_SCHEDULE_LABEL).filter(|_| !gone);
        let schedule = schedule.map(|name| Key::new(&key.namespace, name));
        let mut tables = index.write();
        tables.backups.set(&key, vm.into_iter().collect());
        tables.scheduled.set(&key, schedule.into_iter().collect());
    }
}

/// The backup that owns a task.
#[must_use]
pub fn backup_of(task: &VirtualMachineTask) -> Option<Key> {
    let mut owners = task.owner_references().iter();
    let owner = owners.find(|owner| owner.kind == "VirtualMachineBackup")?;
    Some(Key::new(task.namespace().unwrap_or_default(), &owner.name))
}

impl Indexed for VirtualMachineBackupSchedule {}
impl Indexed for VirtualMachineReplicaSet {}
impl Indexed for VirtualMachineClass {}
impl Indexed for VirtualMachineImage {}
impl Indexed for ClusterVirtualMachineImage {}
impl Indexed for VirtualMachineImageCache {}
impl Indexed for DataVolume {}
impl Indexed for VolumeSnapshot {}
impl Indexed for Node {}
impl Indexed for PersistentVolumeClaim {}
impl Indexed for PartialObjectMeta<NetworkAttachmentDefinition> {}
impl Indexed for StorageClass {}
impl Indexed for ResourceQuota {}
impl Indexed for PartialObjectMeta<LimitRange> {}
impl Indexed for PartialObjectMeta<Namespace> {}
