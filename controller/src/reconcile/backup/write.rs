//! Writes backups and their schedules: metadata, status and the removal of the finalizer.
//!
//! Invariant: a write applies to the version that was read.
//! Failure: a conflict repeats the pass, as does an object that no longer exists: the next pass does not find it.

use crds::VirtualMachineBackup;
use crds::names::{BACKUP_FINALIZER, BACKUP_UID};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::pass::Pass;
use crate::context::Context;
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone, is_lost_test, json_patch};

/// Owner of the status fields.
const MANAGER: &str = "vmlet-controller";
/// Owner of the metadata.
const META_MANAGER: &str = "vmlet-controller-meta";

/// Writes a status, and returns the object as it is then.
pub(crate) async fn apply_status<K>(
    ctx: &Context,
    object: &K,
    status: &impl Serialize,
) -> Outcome<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned,
    K: std::fmt::Debug,
{
    let meta = object.meta();
    let body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    let name = object.name_any();
    let api = Api::<K>::namespaced(ctx.client.clone(), &object.namespace().unwrap_or_default());
    let written = api.patch_status(&name, &params, &Patch::Apply(body)).await;
    written.map_err(|error| failed(object, "the status", error))
}

/// Marks the backup as one that a target may have.
pub(super) async fn claim(pass: &mut Pass<'_>) -> Outcome<()> {
    let uid = pass.uid();
    let meta = &pass.backup.metadata;
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let is_marked = pass.backup.annotations().get(BACKUP_UID) == Some(&uid);
    let is_held = finalizers.iter().any(|known| known == BACKUP_FINALIZER);
    if is_marked && is_held {
        return Ok(());
    }
    if !is_held {
        finalizers.push(BACKUP_FINALIZER.to_owned());
    }
    let body = json!({ "metadata": {
        "uid": uid,
        "resourceVersion": meta.resource_version,
        "annotations": { BACKUP_UID: uid },
        "finalizers": finalizers,
    }});
    let params = PatchParams {
        field_manager: Some(META_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = api(pass);
    let patch = Patch::Merge(body);
    let written = api.patch(&pass.key.name, &params, &patch).await;
    let written = written.map_err(|error| failed(&pass.backup, "metadata", error))?;
    pass.backup = written;
    Ok(())
}

/// Takes our finalizer off: no target has it, or it is retained there.
pub(super) async fn release(pass: &Pass<'_>) -> Outcome<()> {
    let mut finalizers = pass.backup.finalizers().iter();
    let Some(index) = finalizers.position(|known| known == BACKUP_FINALIZER) else {
        return Ok(());
    };
    let path = format!("/metadata/finalizers/{index}");
    let patch: Patch<()> = json_patch(json!([
        { "op": "test", "path": "/metadata/uid", "value": pass.backup.uid() },
        { "op": "test", "path": path, "value": BACKUP_FINALIZER },
        { "op": "remove", "path": path },
    ]))?;
    let params = PatchParams::default();
    match api(pass).patch(&pass.key.name, &params, &patch).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_lost_test(&error) => Err(again()),
        Err(error) => Err(failed(&pass.backup, "the finalizer", error)),
    }
}

fn api(pass: &Pass<'_>) -> Api<VirtualMachineBackup> {
    Api::namespaced(pass.ctx.client.clone(), &pass.key.namespace)
}

fn failed<K: Resource<DynamicType = ()>>(object: &K, what: &str, error: kube::Error) -> PassError {
    if is_conflict(&error) || is_gone(&error) {
        return again();
    }
    let kind = K::kind(&());
    let name = object.name_any();
    let text = format!("failed to write {what} of {kind} {name}");
    PassError::Failed(anyhow::Error::new(error).context(text))
}
