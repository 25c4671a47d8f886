//! Pods whose machine is gone.
//!
//! Invariant: a pod is let go once nothing of it runs; one that runs is left alone.
//! Failure: the pod's next event tries again.

use kube::Api;
use kube::ResourceExt;

use super::patch;
use super::pods;
use crate::context::{Context, Key};
use crate::outcome::{Done, Outcome};

/// Releases the pod of a machine that no longer exists.
pub(crate) async fn release(ctx: &Context, key: &Key) -> Outcome {
    for pod in ctx.stores.pods.state() {
        let is_its = pod.namespace().as_deref() == Some(&key.namespace)
            && (pod.name_any() == key.name || owner_name(&pod) == Some(&key.name));
        if is_its && pods::is_over(&pod) {
            patch::release_pod(&Api::namespaced(ctx.client.clone(), &key.namespace), &pod).await?;
        }
    }
    Ok(Done::QUIET)
}

fn owner_name(pod: &k8s_openapi::api::core::v1::Pod) -> Option<&str> {
    let mut owners = pod.owner_references().iter();
    let owner = owners.find(|o| o.kind == "VirtualMachine" && o.controller == Some(true));
    owner.map(|o| o.name.as_str())
}
