//! Whether a machine can revert to the snapshot that its owner names.
//!
//! Invariant: changes nothing; the API server is asked whether it would take the restored machine.
//! Failure: the reason of the condition, and what is in the way.

use crds::{PowerState, TaskKind, VirtualMachine, VirtualMachineSnapshot, names};
use kube::ResourceExt;
use kube::api::PatchParams;

use super::{FAILED, INVALID_MANIFEST, claims, restore, seed};
use crate::context::Key;
use crate::flow::PassError;
use crate::reconcile::answers::{again, is_conflict, is_gone, is_refused};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::snapshots;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::has_content;

/// A snapshot that a machine can revert to.
pub(super) struct Usable {
    pub(super) snapshot: VirtualMachineSnapshot,
    /// The claim that is its root disk afterwards; `None`: a disk of its node.
    pub(super) root_claim: Option<String>,
}

/// Why it cannot.
pub(super) enum Refusal {
    /// The reason of the condition, and its text.
    Words(&'static str, String),
    /// The API server did not answer.
    Error(PassError),
}

fn refusal(why: impl Into<String>) -> Refusal {
    Refusal::Words(FAILED, why.into())
}

/// The snapshot, and what it makes of the root disk.
pub(super) async fn run(pass: &Pass<'_>, name: &str) -> Result<Usable, Refusal> {
    let snapshot = found(pass, name)?;
    if let Some(why) = claims::refusal(pass, &snapshot) {
        return Err(refusal(why));
    }
    let invalid = |why| Refusal::Words(INVALID_MANIFEST, why);
    let seed = seed(&snapshot.uid().unwrap_or_default(), &pass.now);
    let restored = restore::restored(pass, &snapshot, name, &seed).map_err(invalid)?;
    let root_claim = restore::root_claim(&restored);
    if root_claim.is_none()
        && let Some(claim) = pass.root_claim()
    {
        return Err(refusal(format!(
            "the root disk is claim {claim}, and the snapshot is of a disk of a node: edit the machine so that no volume has \
             root: true"
        )));
    }
    if let Some(claim) = pass.own_root_claim().filter(|_| !has_content(pass)) {
        // What the guest writes to the new claim would count as that of this one, whenever it is the root disk again.
        return Err(refusal(format!(
            "claim {claim}, which was made for the machine, has no content yet: power the machine on, and revert after its guest \
             has run"
        )));
    }
    let desired = pass.base.spec.power_state;
    if [snapshots::power_state(pass), desired].contains(&Some(PowerState::Suspended)) {
        return Err(refusal(
            "the machine is suspended: power it off, which discards its memory, or resume it",
        ));
    }
    if root_claim.is_none() {
        can_node(pass, &snapshot)?;
    }
    let patch = restore::write(pass, restored, &snapshot).map_err(invalid)?;
    let trial = PatchParams {
        dry_run: true,
        ..restore::params()
    };
    let api = pass.api::<VirtualMachine>();
    match api.patch(&pass.key.name, &trial, &patch).await {
        Ok(_) => match claims::trial(pass, &snapshot, &seed).await {
            Ok(Ok(())) => Ok(Usable {
                snapshot,
                root_claim,
            }),
            Ok(Err(why)) => Err(refusal(why)),
            Err(error) => Err(Refusal::Error(error)),
        },
        Err(source) if is_refused(&source) => {
            let error = anyhow::Error::new(source);
            Err(invalid(error::text(&error)))
        }
        Err(error) if is_conflict(&error) || is_gone(&error) => Err(Refusal::Error(again())),
        Err(source) => {
            let part = "specification";
            Err(Refusal::Error(Error::Write { part, source }.into()))
        }
    }
}

/// Whether the node of the disk reverts it.
fn can_node(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Result<(), Refusal> {
    let Some(node) = pass.node_name() else {
        return Err(refusal("the root disk is not on a node"));
    };
    if let Some(why) = snapshots::inability(pass, &node, TaskKind::Revert) {
        return Err(refusal(why));
    }
    if super::resumes(pass, snapshot) && !snapshots::saves_memory(pass, &node) {
        return Err(refusal(format!(
            "the snapshot has the memory of the guest, and the programs of node {node} cannot resume from that: upgrade \
             vmlet and vmlet-agent there, or set the annotation {} to revert without it",
            names::REVERT_WITHOUT_MEMORY
        )));
    }
    Ok(())
}

/// The snapshot, if it is one of the disk.
fn found(pass: &Pass<'_>, name: &str) -> Result<VirtualMachineSnapshot, Refusal> {
    let key = Key::new(&pass.key.namespace, name);
    let Some(found) = pass.ctx.stores.snapshots.get(&key.reference()) else {
        return Err(refusal("it does not exist"));
    };
    let snapshot = VirtualMachineSnapshot::clone(&found);
    if snapshot.spec.vm_name != pass.key.name {
        let text = format!("it is one of machine {}", snapshot.spec.vm_name);
        return Err(refusal(text));
    }
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(refusal("it is being deleted"));
    }
    if !snapshot.is_created() {
        return Err(refusal("it is not ready"));
    }
    if !snapshots::is_of_disk(&snapshot, &pass.disk_uid()) {
        return Err(refusal("it is one of a disk that no longer exists"));
    }
    Ok(snapshot)
}
