//! Indexes: which machines name an object, which tasks and pods a machine has.
//!
//! Invariant: what an object is filed under is a function of that object alone; filing it again
//! first takes it out of where it was.
//! Failure: none; an object without the label or field is filed nowhere.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crds::conditions::{self, CREATED, FAILURE};
use crds::names::{BACKUP_SCHEDULE_LABEL, VM_UID_LABEL};
use crds::{
    ClusterVirtualMachineImage, GroupMemberKind, VirtualMachine, VirtualMachineBackup,
    VirtualMachineBackupSchedule, VirtualMachineClass, VirtualMachineGroup, VirtualMachineImage,
    VirtualMachineImageCache, VirtualMachineReplicaSet, VirtualMachineSnapshot, VirtualMachineTask,
};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use super::{DataVolume, Key, NetworkAttachmentDefinition, VolumeSnapshot};

/// What the API server's answer has, in whichever words, when a rule of a namespace refuses an
/// object.
const REFUSAL: &str = "is forbidden: ";

/// An object that machines name, or whose change they wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// A class.
    Class(Key),
    /// An image of a namespace, or of the cluster with an empty one.
    Image(Key),
    /// A claim behind a volume.
    Claim(Key),
    /// A data volume made with the machine.
    DataVolume(Key),
    /// A network beyond the pod's own.
    Network(Key),
    /// The storage class of the root disk.
    StorageClass(String),
    /// A group.
    Group(Key),
    /// A machine of which a clone is to be made.
    Source(Key),
    /// A snapshot of which a clone is to be made.
    Snapshot(Key),
    /// A backup that a disk is to be made from.
    Backup(Key),
    /// The node of the root disk.
    Node(String),
    /// The namespace with its quotas and limit ranges, of a machine that the API server refused
    /// something.
    Refused(String),
}

impl Relation {
    /// Everything that a machine names, and waits for.
    #[must_use]
    pub fn of(vm: &VirtualMachine) -> BTreeSet<Self> {
        let namespace = vm.namespace().unwrap_or_default();
        let here = |name: &str| Key::new(&namespace, name);
        let spec = &vm.spec;
        let mut all = BTreeSet::new();
        all.extend(spec.class_name.as_deref().map(here).map(Self::Class));
        all.extend(spec.group_name.as_deref().map(here).map(Self::Group));
        let image = spec.image.as_ref().map(|image| image.name.as_str());
        for name in image.into_iter().chain(spec.image_name.as_deref()) {
            all.insert(Self::Image(here(name)));
            all.insert(Self::Image(Key::new("", name)));
        }
        for claim in spec.volumes.iter().flat_map(|v| &v.persistent_volume_claim) {
            all.insert(Self::Claim(here(&claim.claim_name)));
        }
        all.extend(own_root_claim(vm).map(|name| Self::Claim(here(&name))));
        for template in &spec.data_volume_templates {
            all.insert(Self::DataVolume(here(&template.name)));
        }
        let interfaces = spec.network.iter().flat_map(|n| &n.interfaces);
        for reference in interfaces.flat_map(|i| i.network_ref.as_deref()) {
            all.insert(Self::Network(network(&namespace, reference)));
        }
        let class = spec.storage_class.clone();
        all.extend(class.map(Self::StorageClass));
        if let Some(source) = spec.source.as_ref().filter(|_| is_unmade_clone(vm)) {
            let machine = source.virtual_machine.as_ref();
            all.extend(machine.map(|named| Self::Source(here(&named.name))));
            let snapshot = source.snapshot.as_ref();
            all.extend(snapshot.map(|named| Self::Snapshot(here(&named.name))));
            let backup = source.backup.as_ref();
            all.extend(backup.map(|named| Self::Backup(here(&named.name))));
        }
        let node = vm.status.iter().flat_map(|status| &status.node_name);
        all.extend(node.cloned().map(Self::Node));
        if is_refused(vm) {
            all.insert(Self::Refused(namespace));
        }
        all
    }
}

/// Whether the machine is a clone whose disk is not made yet.
#[must_use]
pub fn is_unmade_clone(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    let is_made = status.is_some_and(|s| conditions::is_true(&s.conditions, CREATED));
    vm.spec.source.is_some() && !is_made
}

/// Whether the last pass failed by a rule of the API server, as far as its words show.
fn is_refused(vm: &VirtualMachine) -> bool {
    let conditions = vm.status.iter().map(|status| &status.conditions);
    let mut failure = conditions.flat_map(|all| conditions::find(all, FAILURE));
    failure.any(|failure| failure.message.contains(REFUSAL))
}

/// Name of the claim that is made for a root disk in a storage class; none where a volume is the root
/// disk, or the node has it.
#[must_use]
pub fn own_root_claim(vm: &VirtualMachine) -> Option<String> {
    let class = vm.spec.storage_class.as_deref().unwrap_or_default();
    let mut claims = vm
        .spec
        .volumes
        .iter()
        .flat_map(|v| &v.persistent_volume_claim);
    let has_root = claims.any(|claim| claim.root);
    (!class.is_empty() && !has_root).then(|| format!("{}-root", vm.name_any()))
}

/// The replica set and the index that a machine's name consists of, `SET-INDEX`.
#[must_use]
pub fn numbered(name: &str) -> Option<(&str, u32)> {
    let (set, text) = name.rsplit_once('-')?;
    let index: u32 = text.parse().ok()?;
    (!set.is_empty() && index.to_string() == text).then_some((set, index))
}

/// The network that a machine of that namespace means: `namespace/name`, or the name alone.
#[must_use]
pub fn network(namespace: &str, reference: &str) -> Key {
    match reference.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None => Key::new(namespace, reference),
    }
}

/// What a group names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Affiliation {
    /// The group that it is a member of.
    Within(Key),
    /// A machine in its boot order.
    Machine(Key),
    /// A group in its boot order.
    Group(Key),
}

impl Affiliation {
    /// Everything that a group names.
    #[must_use]
    pub fn all(group: &VirtualMachineGroup) -> BTreeSet<Self> {
        let namespace = group.namespace().unwrap_or_default();
        let here = |name: &str| Key::new(&namespace, name);
        let within = group.spec.group_name.as_deref().map(here);
        let members = group.spec.boot_order.iter().flat_map(|tier| &tier.members);
        let members = members.map(|member| match member.kind {
            GroupMemberKind::VirtualMachine => Self::Machine(here(&member.name)),
            GroupMemberKind::VirtualMachineGroup => Self::Group(here(&member.name)),
        });
        members.chain(within.map(Self::Within)).collect()
    }
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

/// Who is filed under what, both ways.
#[derive(Debug)]
struct Table<R> {
    under: HashMap<R, BTreeSet<Key>>,
    of: HashMap<Key, BTreeSet<R>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self {
            under: HashMap::new(),
            of: HashMap::new(),
        }
    }
}

impl<R: Clone + Eq + Hash + Ord> Table<R> {
    /// Files `key` under exactly these; under none when there are none.
    fn set(&mut self, key: &Key, new: BTreeSet<R>) {
        let old = self.of.remove(key).unwrap_or_default();
        for gone in old.difference(&new) {
            if let Some(keys) = self.under.get_mut(gone) {
                keys.remove(key);
                if keys.is_empty() {
                    self.under.remove(gone);
                }
            }
        }
        for added in new.difference(&old) {
            let keys = self.under.entry(added.clone()).or_default();
            keys.insert(key.clone());
        }
        if !new.is_empty() {
            self.of.insert(key.clone(), new);
        }
    }

    fn get(&self, under: &R) -> Vec<Key> {
        let keys = self.under.get(under);
        keys.map(|keys| keys.iter().cloned().collect())
            .unwrap_or_default()
    }
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
        let relations = (!gone).then(|| Relation::of(object));
        let key = Key::of(object);
        let set = numbered(&key.name).filter(|_| !gone);
        let set = set.map(|(set, _)| Key::new(&key.namespace, set));
        let mut tables = index.write();
        tables.vms.set(&key, relations.unwrap_or_default());
        tables.numbered.set(&key, set.into_iter().collect());
    }
}

impl Indexed for VirtualMachineTask {
    fn file(object: &Self, gone: bool, index: &Index) {
        let key = Key::of(object);
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
        index
            .write()
            .pods
            .set(&Key::of(object), uid.cloned().into_iter().collect());
    }
}

impl Indexed for VirtualMachineGroup {
    fn file(object: &Self, gone: bool, index: &Index) {
        let affiliations = (!gone).then(|| Affiliation::all(object));
        let mut tables = index.write();
        let groups = &mut tables.groups;
        groups.set(&Key::of(object), affiliations.unwrap_or_default());
    }
}

impl Indexed for VirtualMachineSnapshot {
    fn file(object: &Self, gone: bool, index: &Index) {
        let key = Key::of(object);
        let vm = Key::new(&key.namespace, &object.spec.vm_name);
        let vm = (!gone).then_some(vm);
        index.write().snapshots.set(&key, vm.into_iter().collect());
    }
}

impl Indexed for VirtualMachineBackup {
    fn file(object: &Self, gone: bool, index: &Index) {
        let key = Key::of(object);
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
