//! The writes of a pass: owners, claims, deletes, creates.
//!
//! Invariant: what is destructive is done only after the set was read from the API server as the pass
//! knows it.
//! Failure: a refused creation ends the creations of the pass: the API server would refuse the next ones,
//! too.

use std::fmt::Debug;

use crds::{RetentionPolicy, VirtualMachine, VirtualMachineReplicaSet};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use service::telemetry::one_line;

use super::observe::{Bond, Found, Seen};
use super::plan::{self, BURST, Cause, Demand};
use super::{Work, claims, is_paused, machine, machine_name, own};
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError, UNWATCHED};
use crate::reconcile::answers::{again, is_conflict, is_ending, is_gone};

/// Owner of the fields that sets write into machines and claims.
pub(super) const MANAGER: &str = "vmlet-controller-replica-sets";
/// How far a store may be behind the API server before an object that it does not show counts as one
/// that it never will.
const LAG: SignedDuration = SignedDuration::from_secs(60);

pub(super) async fn run(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    seen: &Seen,
    revision: &str,
    work: &mut Work,
) -> Outcome<()> {
    let plan = plan::plan(&demand(set), &seen.slots());
    work.is_cut = plan.is_cut;
    let changes_owner = |index: u32, found: &Found| match found.bond {
        Bond::Orphan => index < set.spec.replicas,
        Bond::Left => true,
        Bond::Own | Bond::Foreign => false,
    };
    let leaving: Vec<u32> = plan.deletes.iter().map(|(index, _)| *index).collect();
    let changes = claims::changes(ctx, set, seen, &leaving);
    let mut found = seen.found.iter();
    if found.any(|(index, found)| changes_owner(*index, found))
        || !plan.deletes.is_empty()
        || !changes.is_empty()
    {
        confirm(ctx, set).await?;
    }
    // Before machines are released: their claims are not to be deleted with the set any longer.
    let unchanged = claims::follow(ctx, set, &changes, work).await;
    for (index, found) in &seen.found {
        match found.bond {
            Bond::Orphan if *index < set.spec.replicas => {
                own::adopt(ctx, set, &found.vm, *index, work).await;
            }
            Bond::Left if !claims::has_one_of(set, *index, &unchanged) => {
                own::release(ctx, set, &found.vm, work).await;
            }
            Bond::Foreign if *index < set.spec.replicas => {
                let name = machine_name(set, *index);
                let text = format!("a machine {name} exists, and is not of this set");
                work.fail("NameTaken", text);
            }
            Bond::Own | Bond::Left | Bond::Orphan | Bond::Foreign => {}
        }
    }
    for (index, cause) in &plan.deletes {
        if let Some(found) = seen.found.get(index) {
            delete(ctx, set, *index, *cause, &found.vm, work).await;
        }
    }
    create_missing(ctx, set, &plan.creates, revision, work).await;
    Ok(())
}

/// The writes of a pass over a paused set: claims that are no longer to be deleted with it.
pub(super) async fn run_paused(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    work: &mut Work,
) -> Outcome<()> {
    let changes = claims::retained(ctx, set);
    if !changes.is_empty() {
        confirm(ctx, set).await?;
        claims::follow(ctx, set, &changes, work).await;
    }
    Ok(())
}

/// Creates machines until the pass has written enough. An index that cannot have one now uses up no turn
/// of another.
async fn create_missing(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    indices: &[u32],
    revision: &str,
    work: &mut Work,
) {
    let mut created = 0;
    let mut occupied = 0;
    for index in indices {
        if created == BURST {
            work.is_cut = true;
            return;
        }
        match create(ctx, set, *index, revision, work).await {
            Creation::Created => created += 1,
            Creation::Occupied => occupied += 1,
            Creation::Waits => {}
            Creation::Refused => return,
        }
        if occupied == BURST {
            return;
        }
    }
}

/// What the specification requests.
pub(super) fn demand(set: &VirtualMachineReplicaSet) -> Demand {
    let spec = &set.spec;
    let rolling = &spec.update_strategy.rolling_update;
    let is_rolling = spec.update_strategy.kind == crds::ReplicaUpdateType::RollingUpdate;
    Demand {
        replicas: spec.replicas,
        surge: if is_rolling {
            rolling.surge(spec.replicas)
        } else {
            0
        },
        unavailable: rolling.unavailable(spec.replicas),
        replace_from: is_rolling.then_some(rolling.partition),
    }
}

/// Reads the set from the API server: another one than the pass knows ends the pass.
async fn confirm(ctx: &Context, set: &VirtualMachineReplicaSet) -> Outcome<()> {
    let namespace = set.namespace().unwrap_or_default();
    let name = set.name_any();
    let api = Api::<VirtualMachineReplicaSet>::namespaced(ctx.client.clone(), &namespace);
    let found = match api.get(&name).await {
        Ok(found) => found,
        Err(error) if is_gone(&error) => return Err(again()),
        Err(source) => {
            let error = anyhow::Error::new(source);
            let text = format!("failed to read replica set {namespace}/{name}");
            return Err(PassError::Failed(error.context(text)));
        }
    };
    let is_same = found.metadata.uid == set.metadata.uid
        && found.metadata.generation == set.metadata.generation
        && found.metadata.deletion_timestamp.is_none()
        && is_paused(&found) == is_paused(set);
    if is_same { Ok(()) } else { Err(again()) }
}

async fn delete(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    index: u32,
    cause: Cause,
    vm: &VirtualMachine,
    work: &mut Work,
) {
    let keeps = set
        .spec
        .persistent_volume_claim_retention_policy
        .when_scaled
        == RetentionPolicy::Retain;
    if cause == Cause::ScaledDown && !keeps && !claims::leave(ctx, set, index, vm, work).await {
        return;
    }
    let name = vm.name_any();
    let namespace = vm.namespace().unwrap_or_default();
    let api = Api::<VirtualMachine>::namespaced(ctx.client.clone(), &namespace);
    let only_this = DeleteParams::background().preconditions(Preconditions {
        uid: vm.uid(),
        resource_version: vm.resource_version(),
    });
    match api.delete(&name, &only_this).await {
        Ok(_) => {
            let uid = vm.uid().unwrap_or_default();
            ctx.shared.condemned.add(&Key::from_object(set), uid);
            let why = match cause {
                Cause::ScaledDown => "the set is to have fewer machines",
                Cause::Outdated => "it was made from an earlier template",
                Cause::UpdateEnded => "it was additional during an update",
            };
            let text = format!("deleted machine {name}: {why}");
            ctx.events.normal(set, "MachineDeleted", &text);
            tracing::info!(machine = name, ?cause, "machine deleted by its replica set");
        }
        Err(error) if is_gone(&error) => {}
        Err(error) if is_conflict(&error) => work.conflicts += 1,
        Err(error) => failed(
            work,
            "DeleteRefused",
            &format!("delete machine {name}"),
            error,
        ),
    }
}

/// What became of the creation of a machine.
enum Creation {
    Created,
    /// Something that the store does not show has its name, or that of a claim.
    Occupied,
    /// Its claims cannot be used now.
    Waits,
    /// The API server refused it, and would refuse the next.
    Refused,
}

async fn create(
    ctx: &Context,
    set: &VirtualMachineReplicaSet,
    index: u32,
    revision: &str,
    work: &mut Work,
) -> Creation {
    match claims::ensure(ctx, set, index, work).await {
        claims::Readiness::Usable => {}
        claims::Readiness::Unusable => return Creation::Waits,
        claims::Readiness::Hidden => return Creation::Occupied,
        claims::Readiness::Refused => return Creation::Refused,
    }
    let vm = machine::machine(set, index, revision);
    let name = vm.name_any();
    let namespace = set.namespace().unwrap_or_default();
    let api = Api::<VirtualMachine>::namespaced(ctx.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    match api.create(&params, &vm).await {
        Ok(_) => {
            let text = format!("created machine {name}");
            ctx.events.normal(set, "MachineCreated", &text);
            tracing::info!(machine = name, "machine created by its replica set");
            Creation::Created
        }
        // The store does not show it yet, or never will.
        Err(error) if is_conflict(&error) => {
            hidden(
                work,
                "NameTaken",
                "machine",
                &name,
                created_at(&api, &name).await,
            );
            Creation::Occupied
        }
        // It ends with the namespace.
        Err(error) if is_ending(&error) => Creation::Refused,
        Err(error) => {
            failed(
                work,
                "CreateRefused",
                &format!("create machine {name}"),
                error,
            );
            Creation::Refused
        }
    }
}

/// When the object of this name was created, as far as the API server says so.
pub(super) async fn created_at<K>(api: &Api<K>, name: &str) -> Option<Timestamp>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let found = api.get_metadata(name).await.ok()?;
    found.metadata.creation_timestamp.map(|created| created.0)
}

/// Records that a name is taken by an object that the store does not show. The store of a new one is
/// behind; one that has existed for long is none that this version can read.
pub(super) fn hidden(
    work: &mut Work,
    reason: &'static str,
    kind: &str,
    name: &str,
    created: Option<Timestamp>,
) {
    let is_old = |created: &Timestamp| work.now.duration_since(*created) > LAG;
    if created.filter(is_old).is_some() {
        let text = format!("a {kind} {name} exists, and this version of Vmlet cannot read it");
        work.fail(reason, text);
        work.again = Some(UNWATCHED);
    } else {
        work.conflicts += 1;
    }
}

/// Records a failure for the status and as the result of the pass.
pub(super) fn failed(work: &mut Work, reason: &'static str, act: &str, source: kube::Error) {
    let error = anyhow::Error::new(source).context(format!("failed to {act}"));
    work.fail(reason, one_line(&*error));
    work.error.get_or_insert(error);
}
