//! Writes image caches.
//!
//! Invariant: nothing is written that is so already; a write is for the object that was read.
//! Failure: what the API server reports, and the pass is repeated; an object that has gone or changed
//! meanwhile has an event on its way.

use crds::{
    CacheLocation, CachedImage, VirtualMachineImageCache, VirtualMachineImageCacheSpec,
    VirtualMachineImageCacheStatus,
};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::location::Verdict;
use super::{Subject, report};
use crate::context::Context;
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{is_conflict, is_ending, is_gone};

/// Owner of the fields.
const MANAGER: &str = "vmlet-controller";
/// Format of an image of which nothing is known.
const USUAL: &str = "qcow2";

/// The location on a node.
pub(super) fn location(subject: &Subject<'_>, node: &str) -> CacheLocation {
    let format = subject.status.type_.as_deref();
    CacheLocation {
        node: node.to_owned(),
        store: VirtualMachineImageCacheSpec::STORE.to_owned(),
        format: format.filter(|f| *f == "raw").unwrap_or(USUAL).to_owned(),
    }
}

fn desired(subject: &Subject<'_>, kept: &[&Verdict]) -> VirtualMachineImageCacheSpec {
    let key = subject.object.key();
    VirtualMachineImageCacheSpec {
        image: Some(CachedImage {
            kind: subject.object.kind().to_owned(),
            namespace: Some(key.namespace).filter(|namespace| !namespace.is_empty()),
            name: key.name,
            uid: subject.object.uid().to_owned(),
        }),
        provider_id: subject.named.name.clone(),
        provider_version: report::version(subject),
        locations: kept
            .iter()
            .map(|verdict| location(subject, &verdict.node))
            .collect(),
    }
}

/// Creates the cache of an image.
pub(super) async fn create(ctx: &Context, subject: &Subject<'_>, kept: &[&Verdict]) -> Outcome<()> {
    let name = super::name(subject.object.kind(), &subject.object.key());
    let mut cache = VirtualMachineImageCache::new(&name, desired(subject, kept));
    cache.metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(ctx.config.namespace.clone()),
        ..ObjectMeta::default()
    };
    match api(ctx).create(&PostParams::default(), &cache).await {
        Ok(_) => Ok(()),
        // The store does not show it yet, or the installation is being removed.
        Err(error) if is_conflict(&error) || is_ending(&error) => Ok(()),
        Err(source) => Err(failed("create", &name, source)),
    }
}

/// Writes the desired locations where they differ.
pub(super) async fn spec(
    ctx: &Context,
    cache: &VirtualMachineImageCache,
    subject: &Subject<'_>,
    kept: &[&Verdict],
) -> Outcome<()> {
    let desired = desired(subject, kept);
    if desired == cache.spec {
        return Ok(());
    }
    let body = json!({
        "metadata": { "uid": cache.uid() },
        "spec": {
            "providerVersion": desired.provider_version,
            "locations": desired.locations,
        },
    });
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let name = cache.name_any();
    let written = api(ctx).patch(&name, &params, &Patch::Merge(body)).await;
    settled(written.map(drop), "write", &name)
}

/// Writes the status where it differs.
pub(super) async fn status(
    ctx: &Context,
    cache: &VirtualMachineImageCache,
    new: VirtualMachineImageCacheStatus,
) -> Outcome<()> {
    if cache.status.as_ref() == Some(&new) {
        return Ok(());
    }
    let name = cache.name_any();
    let body = json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "VirtualMachineImageCache",
        "metadata": { "name": name, "namespace": ctx.config.namespace, "uid": cache.uid() },
        "status": new,
    });
    let params = PatchParams::apply(MANAGER).force();
    let written = api(ctx)
        .patch_status(&name, &params, &Patch::Apply(body))
        .await;
    settled(written.map(drop), "write the status of", &name)
}

/// Deletes a cache; its tasks go with it.
pub(super) async fn delete(ctx: &Context, cache: &VirtualMachineImageCache) -> Outcome<()> {
    if cache.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let name = cache.name_any();
    let only_this = DeleteParams::background().preconditions(Preconditions {
        uid: cache.uid(),
        resource_version: None,
    });
    let deleted = api(ctx).delete(&name, &only_this).await;
    settled(deleted.map(drop), "delete", &name)
}

fn api(ctx: &Context) -> Api<VirtualMachineImageCache> {
    Api::namespaced(ctx.client.clone(), &ctx.config.namespace)
}

fn settled(written: kube::Result<()>, act: &str, name: &str) -> Outcome<()> {
    match written {
        Err(error) if !is_gone(&error) && !is_conflict(&error) => Err(failed(act, name, error)),
        _ => Ok(()),
    }
}

fn failed(act: &str, name: &str, source: kube::Error) -> PassError {
    let text = format!("failed to {act} image cache {name}");
    PassError::Failed(anyhow::Error::new(source).context(text))
}
