//! Whether a backup can be made now.
//!
//! Invariant: what needs a change of the machine's disks fails; what ends by itself, or by a change of power, is waited
//! for. A backup is of one disk: if the machine gets another one, or goes, it is over.
//! Failure: the text names what is in the way, and what to do.

use crds::conditions::{CREATED, is_true};
use crds::{PowerState, TaskKind, VirtualMachine, VirtualMachineBackup, VirtualMachineTask, names};
use kube::ResourceExt;

use super::claim::Claim;
use super::node::{self, Reach, reach};
use super::pass::Pass;
use super::place;
use crate::reconcile::vm::{disk_uid, is_paused_by_admin};
use crate::stores::own_root_claim;

/// What is done for a backup that is still to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gate {
    /// The node of the disk makes it.
    Open(Disk),
    /// It waits, and why.
    Waits(String),
    /// It is not made, and why.
    Fails(String),
}

/// The disk that a backup is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disk {
    /// The node that has it.
    pub(super) node: String,
    /// UID under which the node keeps it.
    pub(super) uid: String,
}

/// The kinds of task beside which a backup runs: the node itself keeps those apart that need the disk.
const BESIDE: [TaskKind; 4] = [
    TaskKind::PowerOff,
    TaskKind::SetProbe,
    TaskKind::GuestShutdown,
    TaskKind::VerifyBackup,
];

pub(super) fn check(pass: &Pass<'_>, vm: Option<&VirtualMachine>) -> Gate {
    let name = &pass.backup.spec.vm_name;
    let recorded = pass.draft.disk_uid.as_deref();
    let is_gone = vm.is_none_or(|vm| recorded.is_some_and(|known| known != disk_uid(vm)));
    if recorded.is_some() && is_gone {
        return Gate::Fails(format!(
            "the disk of machine {name} that it was requested of no longer exists"
        ));
    }
    // A schedule has requested it for the machine of that time.
    let requested = pass.backup.annotations().get(names::BACKUP_VM_UID);
    if requested.is_some_and(|uid| vm.is_none_or(|vm| vm.metadata.uid.as_ref() != Some(uid))) {
        return Gate::Fails(format!(
            "the machine {name} that it was requested of no longer exists"
        ));
    }
    let Some(vm) = vm.filter(|vm| vm.metadata.deletion_timestamp.is_none()) else {
        return Gate::Waits(format!(
            "machine {name} does not exist, or is being deleted: the backup is made when there is one with a disk"
        ));
    };
    let mut claims = vm.spec.volumes.iter();
    let has_root = claims
        .any(|volume| (volume.persistent_volume_claim.as_ref()).is_some_and(|claim| claim.root));
    if has_root || own_root_claim(vm).is_some() {
        return Gate::Fails(format!(
            "the root disk of machine {name} is a claim, of which nodes make no backup: use the means of its storage system"
        ));
    }
    match place::claim(pass) {
        Some(Claim::Unfit(why) | Claim::Gone(why)) => return Gate::Fails(why),
        Some(Claim::Waits(why)) => return Gate::Waits(why),
        Some(Claim::Usable(_)) | None => {}
    }
    match obstacle(pass, vm) {
        Some(why) => Gate::Waits(why),
        None => Gate::Open(Disk {
            node: node_name(vm).unwrap_or_default(),
            uid: disk_uid(vm).to_owned(),
        }),
    }
}

fn node_name(vm: &VirtualMachine) -> Option<String> {
    vm.status.as_ref()?.node_name.clone()
}

fn obstacle(pass: &Pass<'_>, vm: &VirtualMachine) -> Option<String> {
    let name = &pass.backup.spec.vm_name;
    let status = vm.status.clone().unwrap_or_default();
    let is_made = is_true(&status.conditions, CREATED);
    let Some(node) = node_name(vm).filter(|_| is_made) else {
        return Some(format!("machine {name} has no disk yet"));
    };
    if is_paused_by_admin(vm) {
        return Some(format!("machine {name} is paused by an administrator"));
    }
    if status.power_state == Some(PowerState::Suspended) {
        return Some(format!(
            "machine {name} is suspended, and its disk lacks what is in its memory: resume it, or power it off"
        ));
    }
    if status.snapshot_revert.is_some() {
        return Some(format!("machine {name} reverts to a snapshot"));
    }
    if !node::exists(pass.ctx, &node) {
        return Some(format!(
            "node {node}, which has the disk of machine {name}, does not exist"
        ));
    }
    match reach(pass.ctx, &node, TaskKind::Backup, pass.backup.spec.place()) {
        Reach::Able => {}
        Reach::Unable(why) | Reach::NoTarget(why) => return Some(why),
    }
    if let Some(earlier) = earlier(pass) {
        return Some(format!("backup {earlier} of the machine is made first"));
    }
    let tasks = pass.ctx.stores.tasks_of(disk_uid(vm)).into_iter();
    let mut open = tasks.filter(|task| is_in_the_way(pass, task));
    open.next()
        .map(|task| format!("task {} of the machine has not ended", task.name_any()))
}

/// Whether a task has to end first. One that deletes a backup may delete what this one would build upon; where no agent
/// works on it, it deletes nothing for now.
fn is_in_the_way(pass: &Pass<'_>, task: &VirtualMachineTask) -> bool {
    let is_idle = task.spec.kind == TaskKind::DeleteBackup
        && pass.ctx.stores.agents.is_absent(&task.spec.node_name);
    !task.is_final() && !is_idle && !BESIDE.contains(&task.spec.kind)
}

/// The oldest backup of the machine to the same target, if that is another one and nothing has failed for it: what this
/// one would wait for, it waits for as well.
fn earlier(pass: &Pass<'_>) -> Option<String> {
    let place = |backup: &VirtualMachineBackup| {
        let made = backup.creation_timestamp().map(|at| at.0);
        (made, backup.name_any())
    };
    let attempts = |backup: &VirtualMachineBackup| {
        let status = backup.status.as_ref();
        status.map_or(0, |status| status.failed_attempts)
    };
    let own = place(&pass.backup);
    let others = pass.ctx.stores.backups_of(&pass.machine()).into_iter();
    let others = others.filter(|other| {
        let is_another = other.is_open() && other.uid() != pass.backup.uid();
        is_another && other.spec.place() == pass.backup.spec.place() && attempts(other) == 0
    });
    let others = others.map(|other| place(&other));
    let first = others.filter(|other| *other < own).min();
    first.map(|first| first.1)
}
