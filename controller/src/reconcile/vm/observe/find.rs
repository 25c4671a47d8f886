//! Finds the pod that is the instance of the machine.
//!
//! Invariant: at most one live pod is the machine's; two are an error that a person must look into.
//! Failure: a pod of the same name with another controller is never changed.

use std::sync::Arc;

use crds::VirtualMachine;
use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::pods;
use crate::flow::Outcome;
use crate::reconcile::answers::{again, is_conflict, is_gone, is_lost_test};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::pass::Pass;

/// The machine's pod, running or ended.
///
/// # Errors
///
/// Two live pods; a pod that could not be adopted.
pub(crate) async fn instance(pass: &mut Pass<'_>) -> Outcome<Option<Arc<Pod>>> {
    let mut found = candidates(pass);
    let live: Vec<_> = found.iter().filter(|p| !pods::is_over(p)).collect();
    if live.len() > 1 {
        let names: Vec<_> = live.iter().map(|p| p.name_any()).collect();
        let names = names.join(", ");
        return Err(Error::TwoPods { names }.into());
    }
    // A live one first, then the one with the machine's own name.
    let name = pass.key.name.clone();
    found.sort_by_key(|p| (pods::is_over(p), p.name_any() != name));
    match found.into_iter().next() {
        Some(pod) => Ok(Some(pod)),
        None => adopt(pass).await,
    }
}

/// Pods of this machine by what the status remembers, by the domain's UUID, or by the machine's
/// UID.
fn candidates(pass: &Pass<'_>) -> Vec<Arc<Pod>> {
    let uid = pass.uid();
    let remembered = pass.instance().map(|i| i.uid.clone());
    let unique = pass.seen().and_then(|s| s.unique_id.as_deref());
    let by_status = unique.and_then(|id| id.rsplit('/').next());
    let by_spec = pass.vm.spec.instance_uuid.as_deref();
    let is_it = |pod: &Pod| {
        let uuid = pods::annotation(pod, names::INSTANCE_UUID);
        remembered.is_some() && pod.uid() == remembered
            || uuid.is_some() && (uuid == by_status || uuid == by_spec)
            || pod.labels().get(names::VM_UID_LABEL) == Some(&uid)
    };
    let is_ours = |pod: &Arc<Pod>| {
        pod.namespace().as_deref() == Some(&pass.key.namespace)
            && pods::role(pod) != pods::PROVISION
            // One that lost its owner is adopted first.
            && pods::controller_uid(pod) == Some(uid.as_str())
            && is_it(pod)
    };
    let stores = &pass.ctx.stores;
    let mut near = stores.pods_of(&uid);
    let named = stores.pods.get(&pass.key.reference());
    near.extend(named.filter(|p| near.iter().all(|n| n.uid() != p.uid())));
    near.retain(is_ours);
    let has_ended = pass.instance().is_some_and(|i| {
        let phase = i.phase.as_deref().unwrap_or_default();
        lifecycle::Phase::is_final_name(phase)
    });
    if near.is_empty() && remembered.is_some() && !has_ended {
        // Its label was lost, or it has another name: look at all of them.
        near = stores.pods.state().into_iter().filter(is_ours).collect();
        near.sort_by_key(|pod| pod.name_any());
    }
    near
}

/// Adopts a running pod of the same name without a controller.
async fn adopt(pass: &mut Pass<'_>) -> Outcome<Option<Arc<Pod>>> {
    let Some(pod) = pass.ctx.stores.pods.get(&pass.key.reference()) else {
        return Ok(None);
    };
    let is_orphan = pods::controller_uid(&pod).is_none()
        && pods::role(&pod) == pods::INSTANCE
        && !pods::is_deleting(&pod);
    if !is_orphan {
        return Ok(None);
    }
    let live = pass.api::<VirtualMachine>().get(&pass.key.name).await;
    let live = live.map_err(|source| {
        let what = "the machine before adopting its pod".to_owned();
        Error::Read { what, source }
    })?;
    if live.uid() != pass.vm.uid() || live.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let mut metadata = json!({
        "uid": pod.uid(),
        "resourceVersion": pod.resource_version(),
        "labels": { (names::VM_UID_LABEL): pass.uid() },
        "ownerReferences": [pass.owner()],
    });
    let mut finalizers = pod.finalizers().to_vec();
    if !finalizers.iter().any(|f| f == names::FINALIZER) {
        finalizers.push(names::FINALIZER.to_owned());
        metadata["finalizers"] = json!(finalizers);
    }
    let change = Patch::Merge(json!({ "metadata": metadata }));
    let api = pass.api::<Pod>();
    match api
        .patch(&pass.key.name, &PatchParams::default(), &change)
        .await
    {
        Ok(adopted) => {
            remember(pass, &adopted);
            pass.count_change();
            Ok(Some(Arc::new(adopted)))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) if is_conflict(&error) || is_lost_test(&error) => Err(again()),
        Err(source) => {
            let name = pass.key.name.clone();
            Err(Error::CreatePod { name, source }.into())
        }
    }
}

/// What the adopted pod knows and a new machine does not.
fn remember(pass: &mut Pass<'_>, pod: &Pod) {
    let uid = pass.uid();
    let of = |key: &str| pods::annotation(pod, key).map(str::to_owned);
    let disk = of(names::VM_DISK);
    let node = pods::node(pod).map(str::to_owned);
    let instance = of(names::INSTANCE_UUID);
    let bios = of(names::BIOS_UUID);
    let image = pods::image(pod).map(str::to_owned);
    let url = of(names::IMAGE_URL);
    let status = pass.status();
    if let Some(disk) = disk {
        status.disk_uid = (disk != uid).then_some(disk);
        status.node_name = node.or(status.node_name.take());
        if image.is_some() {
            (status.image, status.image_url) = (image, url);
        }
    }
    status.instance_uuid = instance.or(status.instance_uuid.take());
    status.bios_uuid = bios.or(status.bios_uuid.take());
}

/// The machine's placeholder.
pub(crate) fn placeholder(pass: &Pass<'_>) -> Option<Arc<Pod>> {
    let uid = pass.uid();
    let all = pass.ctx.stores.pods_of(&uid);
    all.into_iter()
        .find(|p| pods::role(p) == pods::PROVISION && pods::controller_uid(p) == Some(uid.as_str()))
}
