//! One pass over one image, of a namespace or of the cluster.
//!
//! ```text
//! source ─► name in pods ─► a node reads the first bytes ─► status: format, sizes, nodes that have it, Ready
//!   tag or file ──► version ──┘
//!                └────────► nodes of spec.prePull pull it ─► status: how many have it
//!                └────────► nodes that need its files ─► its image cache
//! claim  ─► whether it is bound ─► status: size, Ready
//! ```
//!
//! Invariant: a pass waits for no node; nothing is written when nothing changed. The task of an
//! answer is deleted once the answer is recorded.
//! Failure: a pass that fails is repeated; what is wrong with the image shows in its `Ready`, and
//! what is wrong with a pull in `status.prePull`.

pub(crate) mod cache;
mod claim;
mod inspect;
pub(crate) mod name;
mod nodes;
pub(crate) mod object;
mod pre_pull;
mod report;
mod task;
mod update;
pub(crate) mod used;

use std::time::Duration;

use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome};

pub(crate) use self::cache::STEP;
use self::inspect::Answer;
use self::nodes::Holders;
pub(crate) use self::nodes::{foreign, keep_ours, names, repository};
use self::object::Object;
use self::update::Absence;
pub(crate) use self::update::UP_TO_DATE;

/// How soon an image without an answer is checked again, for the case that the event that ends
/// the wait is missed.
const RECHECK: Duration = Duration::from_secs(60);
/// Longest message in a status, in bytes.
const LONGEST: usize = 2048;

/// One pass.
///
/// # Errors
///
/// What the API server reports of a write; see [`crate::flow::PassError`].
pub async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(object) = Object::find(&ctx.stores, key) else {
        cache::remove(ctx, key).await?;
        return Ok(Flow::Continue);
    };
    // Before the first list no agent is known, which would read as "no node".
    if object.meta().deletion_timestamp.is_some() || !ctx.stores.agents.are_listed() {
        return Ok(Flow::Continue);
    }
    let updates = update::observe(ctx, &object).await?;
    let named = object.named();
    let answer = match &named {
        Ok(_) if object.claim().is_some() => claim::observe(ctx, &object).await?,
        // Tasks have no credentials: kubelet pulls such an image for its pods.
        Ok(_) if object.needs_credentials() => Answer::Private,
        Ok(named) => match update::absent(ctx, &object, named) {
            Some(Absence::Gone(why)) => Answer::VersionGone(why),
            Some(Absence::NotSeen(why, found)) => Answer::VersionNotSeen(why, found),
            None => match update::known(ctx, &object, named) {
                Some(found) => Answer::Found(found),
                None => inspect::observe(ctx, &object, named, &updates).await?,
            },
        },
        Err(refused) => match (&updates.status, &updates.verdict) {
            (Some(_), Some(verdict)) => Answer::NoVersion(verdict.message.clone()),
            _ => Answer::NotSupported(refused.0.clone()),
        },
    };
    let named = named.ok().filter(|_| object.claim().is_none());
    let holders = match &named {
        Some(named) => Holders::of_image(&ctx.stores, &named.name),
        None => Holders::default(),
    };
    let pulls = pre_pull::observe(ctx, &object, named.as_ref(), &holders, &updates).await?;
    let now = (ctx.clock)();
    let status = report::draft(&object, &answer, (&holders, &pulls, &updates), &now);
    report::write(ctx, &object, &status).await?;
    let cached = match &named {
        Some(named) if ctx.config.machines.image_caches => {
            let subject = cache::Subject {
                object: &object,
                named,
                holders: &holders,
                status: &status,
            };
            cache::observe(ctx, &subject).await?
        }
        _ => {
            cache::remove(ctx, key).await?;
            None
        }
    };
    let flow = match answer {
        // The event of the write wakes the image, and the next pass deletes the task.
        Answer::OnRecord | Answer::Found(_) | Answer::NotSupported(_) => Flow::Continue,
        // The update says when it is checked again.
        Answer::NoVersion(_) => Flow::Continue,
        // The claim's event wakes it.
        Answer::Claim(_) | Answer::NoClaim(_) => Flow::Continue,
        Answer::Failed { again, .. } => Flow::RequeueAfter(again),
        // The lists of nodes change without an event for the image.
        Answer::Waiting { .. }
        | Answer::NoNode
        | Answer::Private
        | Answer::VersionGone(_)
        | Answer::VersionNotSeen(..) => Flow::RequeueAfter(RECHECK),
    };
    // The nodes that have it change without an event for the image.
    let former = object.has_former_file().then_some(RECHECK);
    let flow = sooner(sooner(flow, updates.again), former);
    Ok(sooner(sooner(flow, pulls.again), cached))
}

/// The flow of an image that is also to be checked again after this time.
fn sooner(flow: Flow, again: Option<Duration>) -> Flow {
    match (flow, again) {
        (Flow::RequeueAfter(after), Some(again)) => Flow::RequeueAfter(after.min(again)),
        (_, Some(again)) => Flow::RequeueAfter(again),
        (flow, None) => flow,
    }
}
