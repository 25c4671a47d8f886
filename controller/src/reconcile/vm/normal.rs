//! A machine that is not being deleted.
//!
//! Invariant: of a paused machine only the end of its pod is recorded; nothing is done for one
//! without our finalizer.
//! Failure: an event names what failed; silence means that nothing changed.

use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::sync::Arc;

use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::act::{create, identity, schema, snapshot};
use crate::reconcile::vm::error;
use crate::reconcile::vm::observe::{find, group};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::cache;
use crate::reconcile::vm::update;

/// What the pass came to.
pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome {
    if pass.is_paused() {
        update::record_end(pass);
        return Ok(Flow::Continue);
    }
    if !pass.vm.finalizers().iter().any(|f| f == names::FINALIZER) {
        pass.vm.finalizers_mut().push(names::FINALIZER.to_owned());
        schema::begin(pass);
        return Ok(Flow::Continue);
    }
    identity::choose(pass);
    cache::forget(pass);
    group::link(pass);
    let found = match find::instance(pass).await {
        Ok(found) => found,
        Err(error) => {
            if let PassError::Failed(error) = &error {
                pass.warning("ReconcileNormalFailure", &error::text(error));
            }
            return Err(error);
        }
    };
    if pass.is_created() || found.is_some() {
        Box::pin(updated(pass, found)).await
    } else {
        created(pass).await
    }
}

async fn created(pass: &mut Pass<'_>) -> Outcome {
    let result = create::run(pass).await;
    let disk = pass.disk_uid();
    let why = "the machine has no disk yet";
    let waiting = snapshot::without_disk(pass.ctx, pass.key, Some(&disk), why).await;
    match &result {
        Ok(Flow::Done(_)) => match pass.root_claim() {
            // It may wait for the pod that uses it first.
            Some(claim) => {
                let text = format!("the root disk is in the claim {claim}");
                pass.normal("CreateSuccess", &text);
            }
            None => pass.normal("CreateSuccess", "the root disk is ready"),
        },
        Err(PassError::Failed(error)) => pass.warning("CreateFailure", &error::text(error)),
        _ => {}
    }
    match result {
        Ok(flow) => waiting.map(|()| flow),
        failed => failed,
    }
}

async fn updated(pass: &mut Pass<'_>, found: Option<Arc<Pod>>) -> Outcome {
    let before = pass.changes();
    let result = Box::pin(update::run(pass, found)).await;
    let has_changed = pass.changes() > before;
    match &result {
        Err(PassError::Failed(error)) => pass.warning("UpdateFailure", &error::text(error)),
        Ok(Flow::Done(what)) if has_changed => pass.normal("UpdateSuccess", what),
        Ok(Flow::Waiting(reason)) if has_changed => pass.normal("UpdateSuccess", reason),
        _ if has_changed => pass.normal("UpdateSuccess", "updated"),
        _ => {}
    }
    result
}
