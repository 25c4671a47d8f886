//! Whether the node keeps a manifest of the machine beside its disk.
//!
//! The agent makes manifests by itself, and reports on its lease what it could not write: so a manifest
//! that is written again is no write to the API server.
//!
//! Invariant: the condition follows from what the agent has reported last; a node that does not report
//! changes nothing.
//! Failure: none of its own: the node tries again.

use crds::backup::DiskRecord;
use crds::conditions::{self, BACKUP_UP_TO_DATE, Status};
use crds::{VirtualMachine, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::reconcile::vm::pass::Pass;
use crate::stores::Agents;

/// Reason: the node could not write the manifest.
pub(crate) const FAILED: &str = "VirtualMachineBackupFailed";
/// Reason: the manifest is that of an earlier machine, whose disk the machine is about to take over.
pub(crate) const PAUSED: &str = "VirtualMachineBackupPaused";

/// What a node says of the manifest of a machine.
enum Backup {
    Kept,
    Failed(String),
}

/// Sets the condition.
pub(crate) fn run(pass: &mut Pass<'_>) {
    match reported(&pass.ctx.stores.agents, &pass.vm) {
        None if !pass.ctx.stores.agents.are_listed() => {}
        None => pass.drop_condition(BACKUP_UP_TO_DATE),
        Some(Backup::Kept) => pass.condition(BACKUP_UP_TO_DATE, Status::True, "", ""),
        Some(Backup::Failed(text)) => {
            pass.condition(BACKUP_UP_TO_DATE, Status::False, FAILED, &text);
        }
    }
}

/// Whether the condition of a machine says otherwise than its node by now.
pub(crate) fn is_outdated(agents: &Agents, vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    let known = status.and_then(|s| conditions::find(&s.conditions, BACKUP_UP_TO_DATE));
    let has_failed = |known: &Condition| known.reason == FAILED;
    let node = status.and_then(|s| s.node_name.as_deref());
    let is_failing = node.is_some_and(|node| agents.has_backup_failures(node));
    // Nearly all machines, at each event of a lease.
    if !is_failing && !known.is_some_and(has_failed) {
        return false;
    }
    match (reported(agents, vm), known) {
        (Some(Backup::Failed(text)), Some(known)) => !has_failed(known) || known.message != text,
        (Some(Backup::Failed(_)), None) => true,
        (Some(Backup::Kept), Some(known)) => has_failed(known),
        // It comes with the next write: no one waits for it.
        (Some(Backup::Kept) | None, _) => false,
    }
}

/// `None`: the node keeps none, or the machine has no disk there.
fn reported(agents: &Agents, vm: &VirtualMachine) -> Option<Backup> {
    let record = DiskRecord::of_machine(&vm.metadata, vm.status.as_ref()?)?;
    if !agents.has(&record.node, names::MACHINE_BACKUP) {
        return None;
    }
    Some(match agents.backup_failure(&record.node, &record.disk) {
        Some(text) => Backup::Failed(text),
        None => Backup::Kept,
    })
}
