//! Deletes a machine and keeps everything that it has on the platform.
//!
//! Invariant: owner references go first, so that the garbage collector finds nothing to take.
//! Failure: what cannot be changed keeps the machine; the pass is repeated.

use crds::VirtualMachineTask;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;

use super::{Pass, find, tasks};
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::is_gone;
use crate::reconcile::vm::error::Error;

pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome<()> {
    let uid = pass.uid();
    if let Some(pod) = find::instance(pass).await? {
        strip(&pass.api::<Pod>(), &*pod, &uid).await?;
    }
    for task in tasks::all(pass) {
        strip(&pass.api::<VirtualMachineTask>(), &*task, &uid).await?;
    }
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume");
    let mut resource = ApiResource::from_gvk(&kind);
    resource.plural = "datavolumes".to_owned();
    let client = pass.ctx.client.clone();
    let api = Api::namespaced_with(client, &pass.key.namespace, &resource);
    for template in &pass.vm.spec.data_volume_templates {
        let found: Option<DynamicObject> = api.get_opt(&template.name).await.map_err(failed)?;
        if let Some(found) = found {
            strip(&api, &found, &uid).await?;
        }
    }
    Ok(())
}

/// Takes the machine out of the owners.
async fn strip<K>(api: &Api<K>, object: &K, uid: &str) -> Outcome<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let owners = object.owner_references();
    let left: Vec<_> = owners.iter().filter(|o| o.uid != uid).collect();
    if left.len() == owners.len() {
        return Ok(());
    }
    let change = Patch::Merge(json!({ "metadata": {
        "uid": object.uid(),
        "ownerReferences": left,
    }}));
    let name = object.name_any();
    match api.patch(&name, &PatchParams::default(), &change).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn failed(source: kube::Error) -> PassError {
    let part = "dependents";
    Error::Write { part, source }.into()
}
