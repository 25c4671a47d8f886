//! New claims for a machine that reverts: storage systems make claims of their snapshots, and change none that exists.
//!
//! Invariant: the name of a new claim follows from the revert and the claim that it replaces, so that a step that is
//! repeated makes no second one; the earlier claims stay as they are, with whatever owner they have.
//! Failure: what is in the way, in words, as far as it can be known before anything of the machine changes.

use std::sync::Arc;

use crds::{ClaimSnapshot, VirtualMachineSnapshot, names};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference,
    VolumeResourceRequirements,
};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::answers::{again, is_conflict, is_refused};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::parts;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{bytes, claim_capacity, quantity};

const GROUP: &str = "snapshot.storage.k8s.io";
/// Most characters of the name of a claim that the name of a new one begins with.
const PREFIX: usize = 200;

/// The claims that a snapshot has parts of.
pub(super) fn records(snapshot: &VirtualMachineSnapshot) -> &[ClaimSnapshot] {
    let status = snapshot.status.as_ref();
    status.map_or(&[][..], |status| status.claims.as_slice())
}

/// Why new claims cannot be made of the snapshot, if so.
pub(super) fn refusal(pass: &Pass<'_>, snapshot: &VirtualMachineSnapshot) -> Option<String> {
    if let Some(root) = pass.root_claim() {
        return Some(format!(
            "the root disk is claim {root}, which is not reverted in place: make a claim of the VolumeSnapshot in the \
             status of the snapshot, and a machine with that claim as its root disk"
        ));
    }
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
    let names = [Some(claim), present.map(|present| &present.claim_name)];
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
    for record in records(snapshot) {
        let like = match pattern(pass, snapshot, record) {
            Ok(like) => like,
            Err(why) => return Ok(Err(why)),
        };
        let name = replacement(&record.claim_name, seed);
        let new = new(pass, &name, record, &like);
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

fn refused(name: &str, source: kube::Error) -> String {
    let why = error::text(&anyhow::Error::new(source));
    format!("failed to create claim {name}: {why}")
}

/// Makes the new claims; `Err`: there is none for one, and why.
pub(super) async fn make(
    pass: &mut Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    seed: &str,
) -> Outcome<Result<(), String>> {
    for record in records(snapshot) {
        let api = pass.api::<PersistentVolumeClaim>();
        let name = replacement(&record.claim_name, seed);
        let failed = |source: kube::Error| {
            let name = name.clone();
            Error::RootClaim { name, source }.into()
        };
        let known = Key::new(&pass.key.namespace, &name);
        let known = pass.ctx.stores.claims.get(&known.reference());
        if known.is_some_and(|known| is_replacement(pass, &known, record)) {
            continue;
        }
        let like = match pattern(pass, snapshot, record) {
            Ok(like) => like,
            Err(why) => return Ok(Err(why)),
        };
        match api
            .create(&PostParams::default(), &new(pass, &name, record, &like))
            .await
        {
            Ok(_) => {
                pass.count_change();
                pass.normal("SuccessfulClaimCreate", &name);
            }
            // Its event is on its way, or it is none of ours.
            Err(error) if is_conflict(&error) => match api.get_opt(&name).await.map_err(failed)? {
                Some(found) if is_replacement(pass, &found, record) => {}
                Some(_) => {
                    let why = format!("claim {name} exists, and is another one: delete it");
                    return Ok(Err(why));
                }
                None => return Err(again()),
            },
            Err(source) if is_refused(&source) => return Ok(Err(refused(&name, source))),
            Err(source) => return Err(failed(source)),
        }
    }
    Ok(Ok(()))
}

/// The new claims take the place of the earlier ones in the manifest of the machine.
pub(super) fn rename(
    manifest: &mut Map<String, Value>,
    snapshot: &VirtualMachineSnapshot,
    seed: &str,
) {
    let volumes = manifest
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("volumes"));
    let volumes = volumes.and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        let Some(name) = volume.pointer_mut("/persistentVolumeClaim/claimName") else {
            continue;
        };
        let replaced = records(snapshot).iter();
        let mut replaced = replaced.map(|record| record.claim_name.as_str());
        if let Some(claim) = replaced.find(|claim| *name == *claim) {
            *name = json!(replacement(claim, seed));
        }
    }
}

/// Name of the claim that replaces this one in one revert.
fn replacement(claim: &str, seed: &str) -> String {
    let digest = Sha256::digest(format!("{seed}/{claim}"));
    let begin = &claim[..claim.len().min(PREFIX)];
    let begin = begin.trim_end_matches(['.', '-']);
    let hex: String = digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{begin}-{hex}")
}

fn is_replacement(pass: &Pass<'_>, found: &PersistentVolumeClaim, record: &ClaimSnapshot) -> bool {
    let source = found
        .spec
        .as_ref()
        .and_then(|spec| spec.data_source.as_ref());
    let is_of_it = source.is_some_and(|source| source.name == record.volume_snapshot_name);
    is_of_it && found.labels().get(names::VM_UID_LABEL) == Some(&pass.uid())
}

fn new(
    pass: &Pass<'_>,
    name: &str,
    record: &ClaimSnapshot,
    like: &PersistentVolumeClaim,
) -> PersistentVolumeClaim {
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
                kind: "VolumeSnapshot".to_owned(),
                name: record.volume_snapshot_name.clone(),
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    };
    new.metadata.name = Some(name.to_owned());
    new.metadata.namespace = Some(pass.key.namespace.clone());
    new.labels_mut()
        .insert(names::VM_UID_LABEL.to_owned(), pass.uid());
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_valid_and_of_one_revert() {
        let first = replacement("data", "uid/1");
        assert!(first.starts_with("data-") && first.len() == 13, "{first}");
        assert_eq!(first, replacement("data", "uid/1"));
        assert_ne!(first, replacement("data", "uid/2"));
        let long = format!("{}.x", "a".repeat(PREFIX - 1));
        let long = replacement(&long, "uid/1");
        assert!(long.len() < 253 && !long.contains('.'), "{long}");
    }
}
