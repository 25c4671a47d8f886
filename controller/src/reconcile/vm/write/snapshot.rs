//! Writes snapshots: metadata, status, the removal of the finalizer, and the deletion.
//!
//! Invariant: a write applies to the version that was read, and nothing is written when nothing differs;
//! only passes over the machine that a snapshot names write it, and of one machine there is one pass.
//! Failure: a conflict repeats the pass; an object that no longer exists needs nothing.

use crds::conditions::{self, Status};
use crds::names::{SNAPSHOT_FINALIZER, SNAPSHOT_UID, SNAPSHOT_VM_LABEL};
use crds::{VirtualMachineSnapshot, VirtualMachineSnapshotStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::patch::{META_MANAGER, STATUS_MANAGER};
use crate::context::Context;
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone, is_lost_test, json_patch};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::pass::shortened;

/// Marks it as one that a node may have, of that machine.
pub(crate) async fn claim(
    ctx: &Context,
    snapshot: &mut VirtualMachineSnapshot,
    owner: OwnerReference,
) -> Outcome<()> {
    let mut new = snapshot.metadata.clone();
    let labels = new.labels.get_or_insert_default();
    labels.insert(SNAPSHOT_VM_LABEL.to_owned(), owner.name.clone());
    if let Some(uid) = new.uid.clone() {
        let annotations = new.annotations.get_or_insert_default();
        annotations.insert(SNAPSHOT_UID.to_owned(), uid);
    }
    let finalizers = new.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|known| known == SNAPSHOT_FINALIZER) {
        finalizers.push(SNAPSHOT_FINALIZER.to_owned());
    }
    // It goes with its machine. It has no say in how that is deleted, and may have a controller.
    let owner = OwnerReference {
        controller: None,
        block_owner_deletion: None,
        ..owner
    };
    let owners = new.owner_references.get_or_insert_default();
    let is_known = owners.iter().any(|known| known.uid == owner.uid);
    if !is_known {
        owners.push(owner);
    }
    if new == snapshot.metadata {
        return Ok(());
    }
    let body = json!({ "metadata": {
        "uid": new.uid,
        "resourceVersion": new.resource_version,
        "labels": new.labels,
        "annotations": { SNAPSHOT_UID: new.uid },
        "finalizers": new.finalizers,
        "ownerReferences": new.owner_references,
    }});
    let manager = PatchParams {
        field_manager: Some(META_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = api(ctx, snapshot);
    let name = snapshot.name_any();
    let written = api.patch(&name, &manager, &Patch::Merge(&body)).await;
    taken(snapshot, written)
}

/// Writes this status, if it differs.
pub(crate) async fn status(
    ctx: &Context,
    snapshot: &mut VirtualMachineSnapshot,
    new: VirtualMachineSnapshotStatus,
) -> Outcome<()> {
    if snapshot.status.as_ref() == Some(&new) {
        return Ok(());
    }
    let body = json!({
        "apiVersion": VirtualMachineSnapshot::api_version(&()),
        "kind": VirtualMachineSnapshot::kind(&()),
        "metadata": {
            "name": snapshot.metadata.name,
            "namespace": snapshot.metadata.namespace,
            "uid": snapshot.metadata.uid,
            "resourceVersion": snapshot.metadata.resource_version,
        },
        "status": new,
    });
    let manager = PatchParams::apply(STATUS_MANAGER).force();
    let api = api(ctx, snapshot);
    let name = snapshot.name_any();
    let patch = Patch::Apply(&body);
    let written = api.patch_status(&name, &manager, &patch).await;
    taken(snapshot, written)
}

/// Sets a condition of a draft.
pub(crate) fn condition(
    ctx: &Context,
    snapshot: &VirtualMachineSnapshot,
    draft: &mut VirtualMachineSnapshotStatus,
    kind: &str,
    state: (Status, &str, &str),
) {
    let generation = snapshot.metadata.generation;
    let now = (ctx.clock)();
    let all = &mut draft.conditions;
    let message = shortened(state.2);
    conditions::set(all, kind, state.0, state.1, message, generation, &now);
}

/// Takes our finalizer off: no node has it.
pub(crate) async fn release(ctx: &Context, snapshot: &VirtualMachineSnapshot) -> Outcome<()> {
    let mut finalizers = snapshot.finalizers().iter();
    let Some(index) = finalizers.position(|known| known == SNAPSHOT_FINALIZER) else {
        return Ok(());
    };
    let path = format!("/metadata/finalizers/{index}");
    let patch: Patch<()> = json_patch(json!([
        { "op": "test", "path": "/metadata/uid", "value": snapshot.uid() },
        { "op": "test", "path": path, "value": SNAPSHOT_FINALIZER },
        { "op": "remove", "path": path },
    ]))?;
    let name = snapshot.name_any();
    let api = api(ctx, snapshot);
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_lost_test(&error) => Err(again()),
        Err(source) => Err(failed(name, source)),
    }
}

/// Deletes it as it is known: one that changed meanwhile stays, and its event is on its way.
pub(crate) async fn delete_unchanged(
    ctx: &Context,
    snapshot: &VirtualMachineSnapshot,
) -> Outcome<()> {
    let this = Preconditions {
        uid: snapshot.uid(),
        resource_version: snapshot.resource_version(),
    };
    delete_if(ctx, snapshot, this).await
}

/// Deletes it, whatever of it changed meanwhile.
pub(crate) async fn delete(ctx: &Context, snapshot: &VirtualMachineSnapshot) -> Outcome<()> {
    let this = Preconditions {
        uid: snapshot.uid(),
        resource_version: None,
    };
    delete_if(ctx, snapshot, this).await
}

async fn delete_if(
    ctx: &Context,
    snapshot: &VirtualMachineSnapshot,
    this: Preconditions,
) -> Outcome<()> {
    let only_this = DeleteParams::background().preconditions(this);
    let name = snapshot.name_any();
    match api(ctx, snapshot).delete(&name, &only_this).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) || is_conflict(&error) => Ok(()),
        Err(source) => Err(failed(name, source)),
    }
}

fn api(ctx: &Context, snapshot: &VirtualMachineSnapshot) -> Api<VirtualMachineSnapshot> {
    let namespace = snapshot.namespace().unwrap_or_default();
    Api::namespaced(ctx.client.clone(), &namespace)
}

fn taken(
    snapshot: &mut VirtualMachineSnapshot,
    written: kube::Result<VirtualMachineSnapshot>,
) -> Outcome<()> {
    match written {
        Ok(new) => {
            *snapshot = new;
            Ok(())
        }
        // Another one of the name is seen by the next pass.
        Err(error) if is_gone(&error) || is_conflict(&error) => Err(again()),
        Err(source) => Err(failed(snapshot.name_any(), source)),
    }
}

fn failed(name: String, source: kube::Error) -> PassError {
    Error::WriteSnapshot { name, source }.into()
}
