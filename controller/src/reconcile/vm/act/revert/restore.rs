//! The last steps of a revert: the machine gets what the manifest of the snapshot has.
//!
//! Invariant: new claims exist before a machine names them; one write, on the version that was read, has the specification, labels and annotations, removes the
//! name of the snapshot, and says in the annotation that it was made: where the name is gone and the annotation
//! says something else, the owner has ended the revert. Then the power state follows, and the record of the
//! revert and the annotation go.
//! Failure: what the API server refuses shows in the condition; the disk is reverted by then, and removing
//! the name ends the revert with the specification as it is.

use crds::conditions::REVERT_SUCCEEDED;
use crds::vm::{Afterwards, SnapshotRevert, StateChangeAction, StateChangeRequest};
use crds::{
    PowerState, RunStrategy, SnapshotReference, SnapshotReferenceType, VirtualMachine,
    VirtualMachineSnapshot, names,
};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use lifecycle::snapshot::manifest::{self, Restored};
use serde_json::json;

use super::{FAILED, INVALID_MANIFEST, claims, failed, seed};
use crate::context::Key;
use crate::flow::{Flow, Outcome};
use crate::reconcile::answers::{again, is_conflict, is_gone, is_refused, json_patch};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::content;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::has_content;
use crate::reconcile::vm::write::patch;

/// Owner of the fields that a revert writes into a machine.
const MANAGER: &str = "vmlet-controller-snapshots";

pub(super) fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// What the machine is when it is restored.
///
/// # Errors
///
/// The manifest cannot be read.
pub(super) fn restored(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    name: &str,
    seed: &str,
) -> Result<Restored, String> {
    let record = snapshot.status.as_ref();
    let record = record.and_then(|status| status.manifest.as_ref());
    let Some(mut record) = record.and_then(crds::RawRecord::fields) else {
        return Err("the snapshot has no manifest".to_owned());
    };
    claims::rename(&mut record, snapshot, &pass.key.name, seed);
    manifest::restored(&pass.base, &record, name)
}

/// The claim that is then its root disk, if one is.
pub(super) fn root_claim(restored: &Restored) -> Option<String> {
    let claims = restored.spec.volumes.iter();
    let mut claims = claims.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let root = claims.find(|claim| claim.root)?;
    Some(root.claim_name.clone())
}

/// The claim of the root disk is a new one: whether pods need the image to fill it is as when the snapshot was taken.
fn mark_content(
    pass: &Pass<'_>,
    restored: &mut Restored,
    snapshot: &VirtualMachineSnapshot,
    made: &claims::Uids,
) {
    let Some(uid) = root_claim(restored).and_then(|name| made.get(&name)) else {
        return;
    };
    let is_complete = match content::recorded(snapshot) {
        Some(content) => content.is_complete,
        None => has_content(pass),
    };
    let mark = names::ROOT_CLAIM_UID.to_owned();
    if is_complete {
        restored.annotations.insert(mark, uid.clone());
    } else {
        restored.annotations.remove(&mark);
    }
}

/// The write that restores the machine.
///
/// # Errors
///
/// It cannot be expressed.
pub(super) fn write(
    pass: &Pass<'_>,
    mut restored: Restored,
    snapshot: &VirtualMachineSnapshot,
) -> Result<Patch<()>, String> {
    let uid = snapshot.uid().unwrap_or_default();
    let mark = names::REVERT_IN_PROGRESS.to_owned();
    restored.annotations.insert(mark, restored_from(&uid));
    let version = pass.base.resource_version();
    json_patch(json!([
        // Another version is a conflict; a lost test would look like a refusal.
        { "op": "replace", "path": "/metadata/uid", "value": pass.base.uid() },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
        { "op": "add", "path": "/metadata/labels", "value": restored.labels },
        { "op": "add", "path": "/metadata/annotations", "value": restored.annotations },
        { "op": "replace", "path": "/spec", "value": restored.spec },
    ]))
    .map_err(|error| error.to_string())
}

/// What the annotation says of a machine that is restored.
fn restored_from(snapshot_uid: &str) -> String {
    format!("restored/{snapshot_uid}")
}

fn is_restored(pass: &Pass<'_>, revert: &SnapshotRevert) -> bool {
    let mark = pass.base.annotations().get(names::REVERT_IN_PROGRESS);
    mark.is_some_and(|mark| *mark == restored_from(&revert.uid))
}

pub(super) async fn run(pass: &mut Pass<'_>, revert: &SnapshotRevert) -> Outcome {
    let key = Key::new(&pass.key.namespace, &revert.name);
    let snapshot = pass.ctx.stores.snapshots.get(&key.reference());
    let snapshot = snapshot.filter(|found| found.uid().as_ref() == Some(&revert.uid));
    if pass.base.spec.current_snapshot_name.as_ref() == Some(&revert.name) {
        let Some(snapshot) = &snapshot else {
            let why = if revert.root_claim_name.is_some() {
                "the snapshot no longer exists"
            } else {
                "the disk is reverted, and the snapshot with the specification no longer exists"
            };
            return Err(failed(pass, &revert.name, INVALID_MANIFEST, why));
        };
        let seed = seed(&revert.uid, &revert.start_time);
        let made = match claims::make(pass, snapshot, &seed).await? {
            Ok(made) => made,
            Err(why) => return Err(failed(pass, &revert.name, FAILED, &why)),
        };
        let restored = restored(pass, snapshot, &revert.name, &seed);
        let patch = restored.and_then(|mut restored| {
            mark_content(pass, &mut restored, snapshot, &made);
            write(pass, restored, snapshot)
        });
        let patch = match patch {
            Ok(patch) => patch,
            Err(why) => return Err(failed(pass, &revert.name, INVALID_MANIFEST, &why)),
        };
        let api = pass.api::<VirtualMachine>();
        match api.patch(&pass.key.name, &params(), &patch).await {
            Ok(new) => rebase(pass, new),
            Err(error) if is_gone(&error) => return Ok(Flow::Continue),
            Err(error) if is_conflict(&error) => return Err(again()),
            Err(source) if is_refused(&source) => {
                let why = error::text(&anyhow::Error::new(source));
                return Err(failed(pass, &revert.name, INVALID_MANIFEST, &why));
            }
            Err(source) => {
                let part = "specification";
                return Err(Error::Write { part, source }.into());
            }
        }
    } else if !is_restored(pass, revert) {
        // The owner removed the name, perhaps by a replacement of the whole machine.
        super::is_on_disk(pass, revert);
        super::end(pass, revert);
        return Ok(Flow::Done("ended a revert"));
    }
    let content = snapshot.as_deref().and_then(content::recorded);
    if let Some(content) = content.filter(|_| revert.root_claim_name.is_some()) {
        let status = pass.status();
        status.image = content.image;
        status.image_url = content.image_url;
    }
    let state = snapshot.and_then(|found| found.status.as_ref()?.power_state);
    if manifest::needs_start(&pass.base.spec, state) {
        start(pass).await?;
    }
    finish(pass, revert, state);
    Ok(Flow::Done("reverted to a snapshot"))
}

/// A machine that starts on request ran when the snapshot was taken.
async fn start(pass: &mut Pass<'_>) -> Outcome<()> {
    let status = pass.base.status.as_ref();
    if status.is_some_and(|status| !status.state_change_requests.is_empty()) {
        // What users requested during the revert decides.
        return Ok(());
    }
    let start = StateChangeRequest {
        action: StateChangeAction::Start,
        uid: None,
        data: std::collections::BTreeMap::new(),
    };
    let body = json!({
        "metadata": {
            "uid": pass.base.uid(),
            "resourceVersion": pass.base.resource_version(),
        },
        "status": { "stateChangeRequests": [start] },
    });
    let request = Patch::Merge(&body);
    let api = pass.api::<VirtualMachine>();
    match api.patch_status(&pass.key.name, &params(), &request).await {
        Ok(new) => {
            rebase(pass, new);
            Ok(())
        }
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => {
            let part = "requests";
            Err(Error::Write { part, source }.into())
        }
    }
}

/// The draft continues with the metadata that was written.
fn rebase(pass: &mut Pass<'_>, new: VirtualMachine) {
    pass.vm.metadata.labels.clone_from(&new.metadata.labels);
    pass.vm
        .metadata
        .annotations
        .clone_from(&new.metadata.annotations);
    patch::rebase(pass, new);
}

/// The snapshot from which the disk descends once it is reverted.
pub(super) fn reference(revert: &SnapshotRevert) -> SnapshotReference {
    SnapshotReference {
        type_: SnapshotReferenceType::Managed,
        name: revert.name.clone(),
        uid: Some(revert.uid.clone()),
    }
}

fn finish(pass: &mut Pass<'_>, revert: &SnapshotRevert, state: Option<PowerState>) {
    // The only instance of a machine that was off had ended.
    let is_used_up = pass.base.spec.run_strategy == Some(RunStrategy::Once)
        && state != Some(PowerState::PoweredOn);
    super::is_on_disk(pass, revert);
    let status = pass.status();
    status.snapshot_revert = None;
    status.start_failure = None;
    let started_by = status.run_strategy.map(|_| RunStrategy::Halted);
    status.run_strategy = is_used_up.then_some(RunStrategy::Once).or(started_by);
    if let Some(last) = &mut status.instance {
        last.afterwards = Some(Afterwards::StayDown);
        last.once_completed = is_used_up;
    }
    pass.drop_condition(REVERT_SUCCEEDED);
    super::idle(pass);
    let mut text = format!("the machine is as in snapshot {}", revert.name);
    if revert.memory {
        text.push_str(", and resumes from its memory");
    }
    if !revert.earlier_claims.is_empty() {
        let stay = format!(
            "; it has new claims, and the earlier ones stay: {}",
            revert.earlier_claims.join(", ")
        );
        text.push_str(&stay);
    }
    pass.normal("RevertSucceeded", &text);
    pass.count_change();
}
