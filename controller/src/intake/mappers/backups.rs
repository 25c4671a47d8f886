//! Which backups, and which schedules of backups, a change concerns.
//!
//! Invariant: a status that a pass has written wakes the backups that wait for its result, and no others; progress wakes
//! the backup that shows it, in tenths.
//! Failure: none; a name that no backup has wakes none.

use crds::conditions::{BACKUP_READY, CREATED, is_true};
use crds::names::{BACKUP_MOUNTED_UNTIL, BACKUP_SCHEDULE_LABEL};
use crds::{
    BackupPlace, VirtualMachine, VirtualMachineBackup, VirtualMachineBackupSchedule,
    VirtualMachineTask,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::reconcile::backup::{kept, needs_node};
use crate::reconcile::vm::is_paused_by_admin;
use crate::stores::{Change, Key, Stores, backup_of};

/// Backups of the machine that are still to be made.
pub(super) fn of_machine(change: &Change<VirtualMachine>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && essence(old) == essence(new)
    {
        return Vec::new();
    }
    open(&Key::from_object(&**change.object()), stores)
}

/// What decides whether a backup of the machine can be made.
fn essence(vm: &VirtualMachine) -> impl PartialEq + '_ {
    let status = vm.status.as_ref();
    (
        (&vm.metadata.uid, vm.metadata.deletion_timestamp.is_some()),
        is_paused_by_admin(vm),
        status.and_then(|status| status.power_state),
        status.and_then(|status| status.node_name.as_deref()),
        status.and_then(|status| status.disk_uid.as_deref()),
        status.is_some_and(|status| status.snapshot_revert.is_some()),
        status.is_some_and(|status| is_true(&status.conditions, CREATED)),
    )
}

/// The backup that owns the task; when a machine's task ends or goes, its backups that wait for it.
pub(super) fn of_task(change: &Change<VirtualMachineTask>, stores: &Stores) -> Vec<Key> {
    let task = change.object();
    let owner = backup_of(task);
    let is_gone = matches!(change, Change::Deleted { .. });
    let is_over = is_gone || task.is_final() || task.metadata.deletion_timestamp.is_some();
    let ends = is_over && !task.spec.kind.is_of_image();
    let machine = Key::new(task.vm_namespace(), &task.spec.vm_name);
    let waiting = ends.then(|| open(&machine, stores));
    owner
        .into_iter()
        .chain(waiting.into_iter().flatten())
        .collect()
}

/// The progress of a task that a backup shows.
pub(super) fn tenths(task: &VirtualMachineTask) -> u32 {
    let exact = task.status.as_ref().filter(|_| backup_of(task).is_some());
    exact.map_or(0, |status| status.progress_percent / 10)
}

/// The backup itself, unless only its status changed; with its end those that wait for it: others of the machine, and
/// the one that it builds upon, which may be being deleted.
pub(super) fn of_backup(change: &Change<VirtualMachineBackup>, stores: &Stores) -> Vec<Key> {
    let backup = change.object();
    let key = Key::from_object(&**backup);
    let is_another = match change {
        Change::Created { .. } => true,
        Change::Updated { old, .. } => request(old) != request(backup),
        Change::Deleted { .. } => false,
    };
    let is_gone = matches!(change, Change::Deleted { .. });
    let has_ended = match change {
        Change::Updated { old, .. } => old.is_open() && !backup.is_open(),
        Change::Created { .. } | Change::Deleted { .. } => is_gone,
    };
    let own = Some(key.clone()).filter(|_| is_another);
    let vm = Key::new(&key.namespace, &backup.spec.vm_name);
    let waiting = has_ended.then(|| open(&vm, stores));
    let status = backup.status.as_ref().filter(|_| is_gone);
    let parent = status.and_then(|status| status.parent.as_ref()?.name.as_deref());
    let parent = parent.map(|name| Key::new(&key.namespace, name));
    let waiting = waiting.into_iter().flatten();
    own.into_iter().chain(waiting).chain(parent).collect()
}

/// All that wait for what a node can do, when one goes: another one takes its place.
pub(super) fn of_node(change: &Change<Node>, stores: &Stores) -> Vec<Key> {
    let Change::Deleted { .. } = change else {
        return Vec::new();
    };
    let waiting = stores.backups.state().into_iter();
    let waiting = waiting.filter(|backup| needs_node(backup));
    waiting.map(|backup| Key::from_object(&*backup)).collect()
}

/// Those that wait for what the claim is to have, or has, of them, when it comes, changes or goes.
pub(super) fn of_claim(change: &Change<PersistentVolumeClaim>, stores: &Stores) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && old.metadata.uid == new.metadata.uid
        && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        && old.spec == new.spec
        && old.status == new.status
    {
        return Vec::new();
    }
    let claim = Key::from_object(&**change.object());
    let mut all = stores.backups.state();
    all.retain(|backup| {
        let is_in_it = backup.spec.place() == BackupPlace::Claim(&claim.name);
        is_in_it && backup.namespace().as_ref() == Some(&claim.namespace) && needs_node(backup)
    });
    all.iter()
        .map(|backup| Key::from_object(&**backup))
        .collect()
}

/// A backup without what passes write.
fn request(backup: &VirtualMachineBackup) -> impl PartialEq + '_ {
    (
        (&backup.metadata.uid, &backup.metadata.deletion_timestamp),
        backup.annotations().get(BACKUP_MOUNTED_UNTIL),
        &backup.spec,
    )
}

/// What machines that are made from it go by.
pub(super) fn result(backup: &VirtualMachineBackup) -> impl PartialEq + '_ {
    let status = backup.status.as_ref();
    (
        &backup.metadata.uid,
        backup.metadata.deletion_timestamp.is_some(),
        status.map(|status| &status.conditions),
    )
}

/// The machine of a backup, when what its node keeps for that changes.
pub(super) fn machine_of(change: &Change<VirtualMachineBackup>) -> Option<Key> {
    let backup = change.object();
    let is_another = match change {
        Change::Created { .. } | Change::Deleted { .. } => kept(backup).is_some(),
        Change::Updated { old, .. } => kept(old) != kept(backup),
    };
    let namespace = backup.namespace().unwrap_or_default();
    is_another.then(|| Key::new(namespace, &backup.spec.vm_name))
}

/// What a schedule goes by in a backup.
fn outcome(backup: &VirtualMachineBackup) -> impl PartialEq + '_ {
    let status = backup.status.as_ref();
    let ready = backup.condition(BACKUP_READY);
    (
        &backup.metadata.uid,
        backup.metadata.deletion_timestamp.is_some(),
        (backup.is_open(), backup.is_completed()),
        ready.map(|ready| &ready.status),
        status.is_some_and(|status| status.verification.is_some()),
        backup.labels(),
    )
}

/// The schedule that has created a backup, when one of its backups comes, ends or goes.
pub(super) fn schedule_of(change: &Change<VirtualMachineBackup>) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && outcome(old) == outcome(new)
    {
        return Vec::new();
    }
    let backup = change.object();
    let name = backup.labels().get(BACKUP_SCHEDULE_LABEL);
    let key = name.map(|name| Key::new(backup.namespace().unwrap_or_default(), name));
    key.into_iter().collect()
}

/// The schedule itself, unless only its status changed.
pub(super) fn of_schedule(change: &Change<VirtualMachineBackupSchedule>) -> Vec<Key> {
    if let Change::Updated { old, new, .. } = change
        && old.metadata.uid == new.metadata.uid
        && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        && old.spec == new.spec
    {
        return Vec::new();
    }
    vec![Key::from_object(&**change.object())]
}

/// Backups of a machine that are still to be made, or that are being deleted.
fn open(vm: &Key, stores: &Stores) -> Vec<Key> {
    let all = stores.backups_of(vm).into_iter();
    let is_leaving = |one: &VirtualMachineBackup| one.metadata.deletion_timestamp.is_some();
    all.filter(|backup| backup.is_open() || is_leaving(backup))
        .map(|backup| Key::from_object(&*backup))
        .collect()
}
