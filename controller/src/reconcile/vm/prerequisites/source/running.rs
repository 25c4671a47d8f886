//! A source that runs: the machine is copied from a snapshot that is taken for the copy.
//!
//! Invariant: the snapshot has a name that follows from the UID of the clone, which is one of its owners. One of that name
//! which the clone does not own, or which is of another machine than its source, is not used; it is deleted only if it
//! names the clone in an annotation and is of its source. A snapshot that was taken is used, whatever the machine does
//! afterwards.
//! Failure: in words: what keeps the machine from being copied, or its snapshot from being taken.

use std::sync::Arc;

use crds::conditions::SNAPSHOT_CREATED;
use crds::vm::StateChangeAction;
use crds::{PowerState, VirtualMachine, VirtualMachineSnapshot, names};
use kube::ResourceExt;

use super::{Missing, WAITS, disk_uid};
use crate::context::Key;
use crate::reconcile::vm::observe::{pods, snapshots};
use crate::reconcile::vm::pass::Pass;
use crate::stores::clone_snapshot;

/// The snapshot of a machine that runs, of which this machine is to be a clone.
#[derive(Debug)]
pub(crate) struct OwnSnapshot {
    pub(crate) name: String,
    /// As the store shows it.
    pub(crate) found: Option<Arc<VirtualMachineSnapshot>>,
}

impl OwnSnapshot {
    /// That of a machine with this source; `None`: its source is no machine.
    pub(crate) fn find(pass: &Pass<'_>) -> Option<Self> {
        pass.vm.spec.source.as_ref()?.virtual_machine.as_ref()?;
        let name = clone_snapshot(&pass.uid());
        let key = Key::new(&pass.key.namespace, &name);
        let found = pass.ctx.stores.snapshots.get(&key.reference());
        Some(Self { name, found })
    }

    /// Whether this machine owns it, and it is of its source: its author's right is to that alone.
    pub(crate) fn is_own(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
        let uid = pass.uid();
        let mut owners = snapshot.owner_references().iter();
        Self::is_of_source(pass, snapshot) && owners.any(|owner| owner.uid == uid)
    }

    /// Whether it goes with this machine: also one whose owner this machine is no longer, because the garbage
    /// collector takes a machine off the owners while that is being deleted.
    pub(crate) fn is_taken_for(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
        let marked = snapshot.annotations().get(names::CLONE_UID);
        let is_marked = marked.is_some_and(|uid| *uid == pass.uid());
        Self::is_own(pass, snapshot) || is_marked && Self::is_of_source(pass, snapshot)
    }

    fn is_of_source(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
        let source = pass.vm.spec.source.as_ref();
        let source = source.and_then(|source| source.virtual_machine.as_ref());
        source.is_some_and(|source| source.name == snapshot.spec.vm_name)
    }

    /// Whether the machine has another disk than the one that it was taken of.
    pub(crate) fn is_of_earlier_disk(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> bool {
        let key = Key::new(&pass.key.namespace, &snapshot.spec.vm_name);
        let recorded = snapshots::recorded_disk(snapshot);
        pass.ctx
            .stores
            .vm(&key)
            .is_some_and(|vm| recorded.is_some_and(|recorded| recorded != disk_uid(&vm)))
    }
}

/// The name of the snapshot that is to be copied; `None`: the machine is off, and its disk is copied.
pub(super) fn check(pass: &Pass<'_>, vm: &VirtualMachine) -> Result<Option<String>, Missing> {
    let own = OwnSnapshot::find(pass);
    if let Some(OwnSnapshot {
        name,
        found: Some(snapshot),
    }) = own
    {
        is_taken(pass, vm, &snapshot)?;
        return Ok(Some(name));
    }
    let name = vm.name_any();
    let status = vm.status.clone().unwrap_or_default();
    let waits = |why: String| Err(Missing::new(WAITS, format!("machine {name} {why}")));
    let Some(state) = status.power_state else {
        return waits("is in no known state".to_owned());
    };
    let desired = lifecycle::desired_power_state(&vm.spec, &status, None).ok();
    if state == PowerState::Suspended || desired == Some(PowerState::Suspended) {
        return waits(
            "is suspended, and its disk is of no use without its memory: resume it, or power it off"
                .to_owned(),
        );
    }
    let mut requests = status.state_change_requests.iter();
    let is_to_run = desired == Some(PowerState::PoweredOn)
        || requests.any(|request| request.action == StateChangeAction::Start);
    if state == PowerState::PoweredOn || is_to_run {
        if let Some(mark) = pause(vm) {
            return waits(format!(
                "runs, and has the {mark}, with which no snapshot of it is taken: remove that"
            ));
        }
        let message = format!("machine {name} runs: a snapshot of it is taken first");
        return Err(Missing {
            needs_snapshot: Some(status.node_name.unwrap_or_default()),
            ..Missing::new(WAITS, message)
        });
    }
    let pods = pass.ctx.stores.pods_of(&vm.uid().unwrap_or_default());
    if !status.state_change_requests.is_empty() || pods.iter().any(|pod| !pods::is_over(pod)) {
        return waits("is being powered off: it is copied when its pod is gone".to_owned());
    }
    Ok(None)
}

/// What keeps the controller from work on the machine.
fn pause(vm: &VirtualMachine) -> Option<String> {
    let mut marks = [names::PAUSED, names::ADMIN_PAUSED].into_iter();
    if let Some(mark) = marks.find(|mark| vm.annotations().contains_key(*mark)) {
        return Some(format!("annotation {mark}"));
    }
    let mark = names::PAUSED_LABEL;
    let is_paused = vm.labels().contains_key(mark);
    is_paused.then(|| format!("label {mark}"))
}

/// Whether the snapshot can be copied.
fn is_taken(
    pass: &Pass<'_>,
    vm: &VirtualMachine,
    snapshot: &VirtualMachineSnapshot,
) -> Result<(), Missing> {
    let name = snapshot.name_any();
    if !OwnSnapshot::is_own(pass, snapshot) {
        let message = format!(
            "snapshot {name} exists, and was not taken for this machine: delete it, or create the machine again"
        );
        return Err(Missing::new("NotOwned", message));
    }
    let of_vm = vm.name_any();
    if snapshot.metadata.deletion_timestamp.is_some() {
        let message = format!(
            "snapshot {name} of machine {of_vm} is being deleted: another one is taken after that"
        );
        return Err(Missing::new(WAITS, message));
    }
    if OwnSnapshot::is_of_earlier_disk(pass, snapshot) {
        let message =
            format!("snapshot {name} is of an earlier machine {of_vm}: another one is taken");
        return Err(Missing::new(WAITS, message));
    }
    let created = snapshot.condition(SNAPSHOT_CREATED);
    let says = created.map_or("", |created| created.message.as_str());
    if snapshots::is_open(snapshot) {
        if let Some(mark) = pause(vm) {
            let message = format!(
                "snapshot {name} of machine {of_vm}, which runs, is taken first, and the machine has the {mark}, with \
                 which no snapshot of it is taken: remove that"
            );
            return Err(Missing::new(WAITS, message));
        }
        let end = if says.is_empty() { "" } else { ": " };
        let message =
            format!("snapshot {name} of machine {of_vm}, which runs, is taken first{end}{says}");
        return Err(Missing::new(WAITS, message));
    }
    if !snapshot.is_created() {
        let message = format!(
            "snapshot {name} of machine {of_vm}, which runs, failed: {says}. Another one is taken in some minutes; or power the machine off: it is then copied without"
        );
        return Err(Missing::new("SnapshotFailed", message));
    }
    Ok(())
}
