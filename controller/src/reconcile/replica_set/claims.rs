//! The claims of the machines of a set: created before their machine, and owned as the retention policy
//! says.
//!
//! | policy | owner of a claim |
//! | --- | --- |
//! | `whenDeleted: Delete`, while there is a machine | the set: Kubernetes deletes the claim with it |
//! | `whenScaled: Delete`, when the set is about to delete the machine | that machine: Kubernetes deletes the claim with it |
//! | else, and of a machine that is not the set's | none |
//!
//! Invariant: only claims with the set's own label are given an owner: one that a user made under this
//! name is used, and never deleted. A machine gets no claim that is being deleted or belongs to
//! another set. With `whenDeleted: Retain` no claim has the set as its owner, with or without a machine
//! and also while the set is paused. A machine that leaves the set takes its claims with it.
//! Failure: a claim that cannot be used is in `ReplicaFailure`; machines of other indices are made.

use std::collections::{BTreeMap, BTreeSet};

use crds::names::{REPLICA_INDEX_LABEL, REPLICA_SET_LABEL};
use crds::{ReplicaClaimTemplate, RetentionPolicy, VirtualMachine, VirtualMachineReplicaSet};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::Work;
use super::act::{MANAGER, created_at, failed, hidden};
use super::observe::{Bond, Found, Seen};
use super::plan::BURST;
use crate::context::{Context, Key};
use crate::flow::UNWATCHED;
use crate::reconcile::answers::{is_conflict, is_ending, is_gone};

/// Whether a machine can be made on its claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Usable,
    /// One of them cannot be used now, as the store shows: nothing was written.
    Unusable,
    /// One of them exists, and the store does not show it.
    Hidden,
    /// The API server refused to create one, and would refuse the next.
    Refused,
}

/// The claim template of this name.
pub(super) fn template<'a>(
    set: &'a VirtualMachineReplicaSet,
    name: &str,
) -> Option<&'a ReplicaClaimTemplate> {
    let mut all = set.spec.volume_claim_templates.iter();
    all.find(|template| template.name == name)
}

/// The name of a claim.
pub(super) fn name(set: &VirtualMachineReplicaSet, template: &str, index: u32) -> String {
    format!("{template}-{}-{index}", set.name_any())
}

fn api(ctx: &Context, set: &VirtualMachineReplicaSet) -> Api<PersistentVolumeClaim> {
    Api::namespaced(ctx.client.clone(), &set.namespace().unwrap_or_default())
}

/// Creates what is missing of the claims of this index, unless one that exists cannot be used.
pub(super) async fn ensure(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    index: u32,
    work: &mut Work,
) -> Readiness {
    let mut missing = Vec::new();
    for template in &set.spec.volume_claim_templates {
        let name = name(set, &template.name, index);
        let key = Key::new(set.namespace().unwrap_or_default(), &name);
        let Some(claim) = ctx.stores.claims.get(&key.reference()) else {
            missing.push((name, template));
            continue;
        };
        if let Some(why) = obstacle(set, &claim) {
            work.fail("ClaimNotUsable", why);
            work.again = Some(UNWATCHED);
            return Readiness::Unusable;
        }
    }
    for (name, template) in missing {
        let claim = claim(set, template, index);
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        match api(ctx, set).create(&params, &claim).await {
            Ok(_) => tracing::info!(claim = name, "claim created for a replica set"),
            // The store does not show it yet, nor whether it can be used.
            Err(error) if is_conflict(&error) => {
                hidden(
                    work,
                    "ClaimNotUsable",
                    "claim",
                    &name,
                    created_at(&api(ctx, set), &name).await,
                );
                return Readiness::Hidden;
            }
            Err(error) if is_ending(&error) => return Readiness::Refused,
            Err(error) => {
                failed(work, "ClaimRefused", &format!("create claim {name}"), error);
                return Readiness::Refused;
            }
        }
    }
    Readiness::Usable
}

/// Why a machine of the set cannot have this claim.
pub(super) fn obstacle(
    set: &VirtualMachineReplicaSet,
    claim: &PersistentVolumeClaim,
) -> Option<String> {
    let name = claim.name_any();
    if claim.metadata.deletion_timestamp.is_some() {
        return Some(format!("claim {name} is being deleted"));
    }
    let of = claim.labels().get(REPLICA_SET_LABEL);
    if let Some(other) = of.filter(|of| **of != set.name_any()) {
        return Some(format!("claim {name} belongs to replica set {other}"));
    }
    let owner = claim.owner_references().iter().find(|owner| {
        let is_ours = owner.api_version.starts_with(crds::GROUP);
        is_ours && Some(&owner.uid) != set.metadata.uid.as_ref()
    });
    owner.map(|owner| format!("claim {name} is deleted with {} {}", owner.kind, owner.name))
}

/// A new claim.
fn claim(
    set: &VirtualMachineReplicaSet,
    template: &ReplicaClaimTemplate,
    index: u32,
) -> PersistentVolumeClaim {
    let labels = [
        (REPLICA_SET_LABEL.to_owned(), set.name_any()),
        (REPLICA_INDEX_LABEL.to_owned(), index.to_string()),
    ];
    let size = BTreeMap::from([("storage".to_owned(), template.size.clone())]);
    let modes = template.access_modes.iter();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name(set, &template.name, index)),
            namespace: set.namespace(),
            labels: Some(labels.into()),
            owner_references: Some(owners(set)),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(modes.map(|mode| format!("{mode:?}")).collect()),
            storage_class_name: template.storage_class_name.clone(),
            volume_mode: Some(format!("{:?}", template.volume_mode)),
            resources: Some(VolumeResourceRequirements {
                requests: Some(size),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// Owners of the claims of a machine that stays.
fn owners(set: &VirtualMachineReplicaSet) -> Vec<OwnerReference> {
    let policy = set
        .spec
        .persistent_volume_claim_retention_policy
        .when_deleted;
    let set = set
        .owner_ref(&())
        .filter(|_| policy == RetentionPolicy::Delete);
    set.into_iter().collect()
}

/// The claims of this index that the set made, as the store shows them.
fn made(ctx: &Context, set: &VirtualMachineReplicaSet, index: u32) -> Vec<PersistentVolumeClaim> {
    let namespace = set.namespace().unwrap_or_default();
    let claim = |template: &ReplicaClaimTemplate| {
        let key = Key::new(&namespace, name(set, &template.name, index));
        let claim = ctx.stores.claims.get(&key.reference())?;
        let is_ours = claim.labels().get(REPLICA_SET_LABEL) == Some(&set.name_any());
        (is_ours && claim.metadata.deletion_timestamp.is_none()).then(|| (*claim).clone())
    };
    let templates = set.spec.volume_claim_templates.iter();
    templates.filter_map(claim).collect()
}

/// A claim that is to have other owners.
#[derive(Debug)]
pub(super) struct Change {
    claim: PersistentVolumeClaim,
    owners: Vec<OwnerReference>,
}

/// All that are to have other owners: claims of machines that leave the set or are not its own; those of
/// machines that stay, after a change of the policy, and after a scale-down that was taken back before the
/// machine was deleted; and [`retained`].
pub(super) fn changes(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    seen: &Seen,
    leaving: &[u32],
) -> Vec<Change> {
    let others = seen.found.iter().filter(|(index, found)| match found.bond {
        Bond::Left | Bond::Foreign => true,
        // Others are adopted.
        Bond::Orphan => **index >= set.spec.replicas,
        Bond::Own => false,
    });
    let claims = others.flat_map(|(index, _)| made(ctx, set, *index));
    let mut all: Vec<_> = claims.filter_map(|claim| freed(set, &claim)).collect();
    let owners = owners(set);
    let stays = |index: &u32, found: &Found| !found.replica.is_deleting && !leaving.contains(index);
    let staying = seen.own().filter(|(index, found)| stays(index, found));
    let claims = staying.flat_map(|(index, _)| made(ctx, set, index));
    let differing = claims.filter(|claim| differs(claim, &owners));
    let change = |claim| Change {
        claim,
        owners: owners.clone(),
    };
    all.extend(differing.map(change));
    let listed: BTreeSet<_> = all.iter().map(|one| one.claim.name_any()).collect();
    let retained = retained(ctx, set).into_iter();
    all.extend(retained.filter(|one| !listed.contains(&one.claim.name_any())));
    all
}

/// Claims that are not to be deleted with the set, and still are: of any index, also without a machine.
pub(super) fn retained(ctx: &Context, set: &VirtualMachineReplicaSet) -> Vec<Change> {
    if set.spec.volume_claim_templates.is_empty() || !owners(set).is_empty() {
        return Vec::new();
    }
    let all = ctx.stores.claims.state();
    let made = all.iter().filter(|claim| is_made(set, claim));
    made.filter_map(|claim| freed(set, claim)).collect()
}

/// The claim without the set as its owner; none, if it is not.
fn freed(set: &VirtualMachineReplicaSet, claim: &PersistentVolumeClaim) -> Option<Change> {
    let is_set = |owner: &OwnerReference| Some(&owner.uid) == set.metadata.uid.as_ref();
    if !claim.owner_references().iter().any(is_set) {
        return None;
    }
    let mut owners = claim.owner_references().to_vec();
    owners.retain(|owner| is_ours(owner) && !is_set(owner));
    Some(Change {
        claim: claim.clone(),
        owners,
    })
}

/// Whether the set made this claim, of whatever index.
fn is_made(set: &VirtualMachineReplicaSet, claim: &PersistentVolumeClaim) -> bool {
    let labels = claim.labels();
    let index = labels.get(REPLICA_INDEX_LABEL);
    let Some(index) = index.and_then(|index| index.parse().ok()) else {
        return false;
    };
    let mut templates = set.spec.volume_claim_templates.iter();
    claim.namespace() == set.namespace()
        && claim.metadata.deletion_timestamp.is_none()
        && labels.get(REPLICA_SET_LABEL) == Some(&set.name_any())
        && templates.any(|template| claim.name_any() == name(set, &template.name, index))
}

/// Writes the owners of claims, after the set was confirmed. Names of the claims that this pass leaves as
/// they are.
pub(super) async fn follow(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    changes: &[Change],
    work: &mut Work,
) -> BTreeSet<String> {
    work.is_cut |= changes.len() > BURST;
    let mut left = BTreeSet::new();
    for (position, change) in changes.iter().enumerate() {
        if position >= BURST || !give(ctx, set, &change.claim, &change.owners, work).await {
            left.insert(change.claim.name_any());
        }
    }
    left
}

/// Whether one of these claims is of this index.
pub(super) fn has_one_of(
    set: &VirtualMachineReplicaSet,
    index: u32,
    claims: &BTreeSet<String>,
) -> bool {
    let mut templates = set.spec.volume_claim_templates.iter();
    templates.any(|template| claims.contains(&name(set, &template.name, index)))
}

/// Gives the claims of this index to the machine that is about to be deleted. Whether it may be.
pub(super) async fn leave(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    index: u32,
    vm: &VirtualMachine,
    work: &mut Work,
) -> bool {
    let wanted: Vec<_> = vm.owner_ref(&()).into_iter().collect();
    let mut is_given = true;
    for claim in made(ctx, set, index) {
        if differs(&claim, &wanted) {
            is_given &= give(ctx, set, &claim, &wanted, work).await;
        }
    }
    is_given
}

fn is_ours(owner: &OwnerReference) -> bool {
    owner.api_version.starts_with(crds::GROUP)
}

fn differs(claim: &PersistentVolumeClaim, wanted: &[OwnerReference]) -> bool {
    let owners = claim.owner_references().iter();
    let found = owners
        .filter(|owner| is_ours(owner))
        .map(|owner| &owner.uid);
    !found.eq(wanted.iter().map(|owner| &owner.uid))
}

/// Whether the claim has the owners now. Those of other programs stay.
async fn give(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    claim: &PersistentVolumeClaim,
    wanted: &[OwnerReference],
    work: &mut Work,
) -> bool {
    let mut owners = claim.owner_references().to_vec();
    owners.retain(|owner| !is_ours(owner));
    owners.extend_from_slice(wanted);
    let body = json!({ "metadata": {
        "uid": claim.uid(),
        "resourceVersion": claim.resource_version(),
        "ownerReferences": owners,
    } });
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let name = claim.name_any();
    let api = api(ctx, set);
    let patch = Patch::Merge(body);
    match api.patch_metadata(&name, &params, &patch).await {
        Ok(_) => return true,
        Err(error) if is_gone(&error) => return true,
        Err(error) if is_conflict(&error) => work.conflicts += 1,
        Err(error) => failed(
            work,
            "ClaimRefused",
            &format!("write the owner of claim {name}"),
            error,
        ),
    }
    false
}
