//! New claims for a machine that reverts: storage systems make claims of their snapshots, and change none that exists.
//!
//! Invariant: the name of a new claim follows from the revert and the claim that it replaces, so that a step that is
//! repeated makes no second one; the earlier claims stay as they are, with whatever owner they have. A root disk that was
//! made for the machine, and goes with it, is replaced by one that does, too; other new claims have no owner.
//! Failure: what is in the way, in words, as far as it can be known before anything of the machine changes.

mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{ClaimSnapshot, VirtualMachineSnapshot, names};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference,
    VolumeResourceRequirements,
};
use kube::ResourceExt;
use kube::api::PostParams;

use self::plan::Replacement;
pub(in crate::reconcile::vm::act) use self::plan::records;
pub(super) use self::plan::rename;
use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::answers::{again, is_conflict, is_refused};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::parts;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{
    ROOT, SNAPSHOT, bytes, claim_capacity, is_made_root_claim, quantity,
};

const GROUP: &str = "snapshot.storage.k8s.io";

/// UIDs of claims by their names.
pub(super) type Uids = BTreeMap<String, String>;

/// Why new claims cannot be made of the snapshot, if so.
pub(super) fn refusal(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Option<String> {
    let mut all = records(snapshot).iter();
    all.find_map(|record| pattern(pass, snapshot, record).err())
}

/// The claim that says what the new one is like: the one that is replaced, or else that of the same volume at present.
fn pattern(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> Result<PersistentVolumeClaim, String> {
    let claim = &record.claim_name;
    if !parts::is_ready(pass, snapshot, record) {
        let name = &record.volume_snapshot_name;
        return Err(format!(
            "VolumeSnapshot {name} of claim {claim} is not ready to use"
        ));
    }
    let mut volumes = pass.base.spec.volumes.iter();
    let present = volumes.find(|volume| volume.name == record.volume_name);
    let present = present.and_then(|volume| volume.persistent_volume_claim.as_ref());
    let present = present.map(|present| present.claim_name.clone());
    let of_class = pass.own_root_claim().filter(|_| record.volume_name == ROOT);
    let names = [Some(claim.clone()), present, of_class];
    let mut found = names.into_iter().flatten().filter_map(|name| {
        let key = Key::new(&pass.key.namespace, name);
        pass.ctx.stores.claims.get(&key.reference())
    });
    let found = found.next().map(Arc::unwrap_or_clone);
    found.ok_or_else(|| {
        let volume = &record.volume_name;
        format!(
            "claim {claim} no longer exists, nor does that of volume {volume}, which the new claim would be like: create \
             a claim of that name"
        )
    })
}

/// Lets the API server judge the new claims, each alone, without making them; `Err`: it refuses one, and why.
pub(super) async fn trial(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    seed: &str,
) -> Outcome<Result<(), String>> {
    let trial = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for replacement in plan::replacements(&pass.key.name, snapshot, seed) {
        let like = match pattern(pass, snapshot, replacement.record) {
            Ok(like) => like,
            Err(why) => return Ok(Err(why)),
        };
        let name = replacement.name.clone();
        let new = new(pass, &replacement, &like);
        match pass
            .api::<PersistentVolumeClaim>()
            .create(&trial, &new)
            .await
        {
            Ok(_) => {}
            Err(source) if is_refused(&source) => return Ok(Err(refused(&name, source))),
            Err(source) => return Err(Error::RootClaim { name, source }.into()),
        }
    }
    Ok(Ok(()))
}

/// A claim of the machine that is made of the snapshot, and that the storage system has not filled yet: it needs the parts
/// of the snapshot until then.
pub(in crate::reconcile::vm::act) fn unfilled(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
) -> Option<String> {
    let volumes = pass.base.spec.volumes.iter();
    let mut claims = volumes.filter_map(|volume| {
        let claim = &volume.persistent_volume_claim.as_ref()?.claim_name;
        let key = Key::new(&pass.key.namespace, claim);
        pass.ctx.stores.claims.get(&key.reference())
    });
    let found = claims.find(|claim| is_unfilled(claim, snapshot));
    found.map(|claim| claim.name_any())
}

fn is_unfilled(claim: &PersistentVolumeClaim, snapshot: &VirtualMachineSnapshot) -> bool {
    let source = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.data_source.as_ref());
    let source = source.filter(|source| source.api_group.as_deref() == Some(GROUP));
    let is_part = source.is_some_and(|source| {
        let mut all = records(snapshot).iter();
        all.any(|record| record.volume_snapshot_name == source.name)
    });
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    is_part && phase != Some("Bound") && claim.metadata.deletion_timestamp.is_none()
}

fn refused(name: &str, source: kube::Error) -> String {
    let why = error::text(&anyhow::Error::new(source));
    format!("failed to create claim {name}: {why}")
}

/// Makes the new claims; `Err`: there is none for one, and why.
pub(super) async fn make(
    pass: &mut Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    seed: &str,
) -> Outcome<Result<Uids, String>> {
    let vm = pass.key.name.clone();
    let mut all = Uids::new();
    for replacement in plan::replacements(&vm, snapshot, seed) {
        let api = pass.api::<PersistentVolumeClaim>();
        let name = replacement.name.clone();
        let failed = |source: kube::Error| {
            let name = name.clone();
            Error::RootClaim { name, source }.into()
        };
        let known = Key::new(&pass.key.namespace, &name);
        let known = pass.ctx.stores.claims.get(&known.reference());
        if let Some(known) = known.filter(|known| is_made(pass, known, &replacement)) {
            all.insert(name, known.uid().unwrap_or_default());
            continue;
        }
        let like = match pattern(pass, snapshot, replacement.record) {
            Ok(like) => like,
            Err(why) => return Ok(Err(why)),
        };
        let new = new(pass, &replacement, &like);
        let made = match api.create(&PostParams::default(), &new).await {
            Ok(made) => {
                pass.count_change();
                pass.normal("SuccessfulClaimCreate", &name);
                made
            }
            // Its event is on its way, or it is none of ours.
            Err(error) if is_conflict(&error) => match api.get_opt(&name).await.map_err(failed)? {
                Some(found) if is_made(pass, &found, &replacement) => found,
                Some(_) => {
                    let why = format!("claim {name} exists, and is another one: delete it");
                    return Ok(Err(why));
                }
                None => return Err(again()),
            },
            Err(source) if is_refused(&source) => return Ok(Err(refused(&name, source))),
            Err(source) => return Err(failed(source)),
        };
        all.insert(name, made.uid().unwrap_or_default());
    }
    Ok(Ok(all))
}

/// Whether this claim was made by an earlier attempt at the same step.
fn is_made(pass: &Pass<'_>, found: &PersistentVolumeClaim, replacement: &Replacement<'_>) -> bool {
    if found.metadata.deletion_timestamp.is_some()
        || replacement.goes_with_machine && !is_made_root_claim(pass, found)
    {
        return false;
    }
    let source = found
        .spec
        .as_ref()
        .and_then(|spec| spec.data_source.as_ref());
    let part = &replacement.record.volume_snapshot_name;
    let is_of_it = source.is_some_and(|source| source.name == *part);
    is_of_it && found.labels().get(names::VM_UID_LABEL) == Some(&pass.uid())
}

fn new(
    pass: &Pass<'_>,
    replacement: &Replacement<'_>,
    like: &PersistentVolumeClaim,
) -> PersistentVolumeClaim {
    let record = replacement.record;
    let old = like.spec.clone().unwrap_or_default();
    let least = record.restore_size.as_ref().and_then(bytes);
    let size = claim_capacity(like).max(least).unwrap_or_default();
    let mut new = PersistentVolumeClaim {
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: old.access_modes,
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), quantity(size))].into()),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: old.storage_class_name,
            volume_mode: old.volume_mode,
            data_source: Some(TypedLocalObjectReference {
                api_group: Some(GROUP.to_owned()),
                kind: SNAPSHOT.to_owned(),
                name: record.volume_snapshot_name.clone(),
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    };
    new.metadata.name = Some(replacement.name.clone());
    new.metadata.namespace = Some(pass.key.namespace.clone());
    if replacement.goes_with_machine {
        new.metadata.owner_references = Some(vec![pass.owner()]);
    }
    new.labels_mut()
        .insert(names::VM_UID_LABEL.to_owned(), pass.uid());
    new
}
