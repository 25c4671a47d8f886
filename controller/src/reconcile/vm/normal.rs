//! A machine that is not being deleted.
//!
//! Invariant: of a paused machine only the end of its pod is recorded; nothing is done for one without our finalizer.
//! Failure: an event names what failed; silence means that nothing changed.

use crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::sync::Arc;

use super::pass::Pass;
use super::{cache, create, find, identity, update};
use crate::outcome::{Outcome, Stop};

/// What the pass came to.
pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome<()> {
    if pass.is_paused() {
        update::record_end(pass);
        return Ok(());
    }
    if !pass.vm.finalizers().iter().any(|f| f == names::FINALIZER) {
        pass.vm.finalizers_mut().push(names::FINALIZER.to_owned());
        return Ok(());
    }
    identity::choose(pass);
    if pass.mode.is_fast() && !cache::is_ready(pass) {
        return Ok(());
    }
    let found = match find::instance(pass).await {
        Ok(found) => found,
        Err(stop) => {
            if let Stop::Failed(error) = &stop {
                pass.warning("ReconcileNormalFailure", &format!("{error:#}"));
            }
            return Err(stop);
        }
    };
    let result = if pass.is_created() || found.is_some() {
        updated(pass, found).await
    } else {
        created(pass).await
    };
    super::prober::sync(pass);
    result
}

async fn created(pass: &mut Pass<'_>) -> Outcome<()> {
    let result = create::run(pass).await;
    match &result {
        Err(Stop::CacheNotReady { name, location }) => {
            let (name, location) = (name.clone(), location.clone());
            cache::wait_for(pass, &name, location.as_deref());
            return Ok(());
        }
        Err(Stop::Failed(error)) => pass.warning("CreateFailure", &format!("{error:#}")),
        // Only the last step of a creation is news.
        Err(Stop::NoRequeue { quiet: true, .. }) => {
            pass.normal("CreateSuccess", "the root disk is ready");
        }
        _ => {}
    }
    result
}

async fn updated(pass: &mut Pass<'_>, found: Option<Arc<Pod>>) -> Outcome<()> {
    pass.acted = false;
    let result = update::run(pass, found).await;
    match &result {
        Err(Stop::Failed(error)) => pass.warning("UpdateFailure", &format!("{error:#}")),
        Err(Stop::NoRequeue { reason, .. }) if pass.acted => pass.normal("UpdateSuccess", reason),
        _ if pass.acted => pass.normal("UpdateSuccess", "updated"),
        _ => {}
    }
    result
}
