//! Deletes a machine and keeps everything that it has on the platform.
//!
//! Invariant: whatever the machine owns loses this owner before the finalizer goes, so that the
//! garbage collector finds nothing to take: pod, tasks, data volumes, and claims, that of the root
//! disk and those that CDI handed over. Only the placeholder goes: it holds nothing.
//! Failure: what cannot be read or changed keeps the machine; the pass is repeated.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crds::VirtualMachineTask;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Pass, find};
use crate::context::Key;
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::pods;
use crate::stores::DataVolume;

pub(super) async fn run(pass: &Pass<'_>) -> Outcome<()> {
    let stores = &pass.ctx.stores;
    let mut pods = owned(pass, &stores.pods);
    pods.insert(pass.key.name.clone());
    if let Some(placeholder) = find::placeholder(pass) {
        pods.remove(&placeholder.name_any());
    }
    // One that has a claim with backups mounted for the machine goes, too.
    pods.retain(|name| {
        let key = Key::new(&pass.key.namespace, name);
        let found = stores.pods.get(&key.reference());
        found.is_none_or(|pod| pods::role(&pod) != pods::BACKUP_TARGET)
    });
    strip::<Pod>(pass, pods).await?;
    strip::<VirtualMachineTask>(pass, owned(pass, &stores.tasks)).await?;
    // The stores may be behind what an earlier pass, or CDI, made: what the machine names counts,
    // too.
    let spec = &pass.vm.spec;
    let templates = spec.data_volume_templates.iter();
    let mut volumes = owned(pass, &stores.data_volumes);
    volumes.extend(templates.map(|template| template.name.clone()));
    // A volume that CDI collects hands its claim to its owners: it goes first.
    let mut claims = owned(pass, &stores.claims);
    claims.extend(volumes.iter().cloned());
    let named = spec.volumes.iter();
    let named = named.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.extend(named.map(|claim| claim.claim_name.clone()));
    claims.extend(pass.own_root_claim());
    strip::<DataVolume>(pass, volumes).await?;
    strip::<PersistentVolumeClaim>(pass, claims).await
}

/// Names of the objects of a kind that the machine owns, as far as the store knows.
fn owned<K>(pass: &Pass<'_>, store: &Store<K>) -> BTreeSet<String>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let uid = pass.uid();
    let is_its = |object: &K| {
        object.namespace().as_deref() == Some(&pass.key.namespace)
            && object.owner_references().iter().any(|o| o.uid == uid)
    };
    let all = store.state().into_iter();
    let its = all.filter(|object| is_its(object));
    its.map(|object| object.name_any()).collect()
}

/// Takes the machine out of the owners of these objects.
async fn strip<K>(pass: &Pass<'_>, names: BTreeSet<String>) -> Outcome<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api = pass.api::<K>();
    let uid = pass.uid();
    for name in names {
        let found = api.get_metadata_opt(&name).await.map_err(failed)?;
        let Some(object) = found else {
            continue;
        };
        let owners = object.owner_references();
        let left: Vec<_> = owners.iter().filter(|o| o.uid != uid).collect();
        if left.len() == owners.len() {
            continue;
        }
        let change = Patch::Merge(json!({ "metadata": {
            "uid": object.uid(),
            "resourceVersion": object.resource_version(),
            "ownerReferences": left,
        }}));
        match api
            .patch_metadata(&name, &PatchParams::default(), &change)
            .await
        {
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) if is_conflict(&error) => return Err(again()),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

fn failed(source: kube::Error) -> PassError {
    let part = "dependents";
    Error::Write { part, source }.into()
}
