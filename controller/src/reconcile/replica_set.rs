//! One pass over one set of machines.
//!
//! ```text
//! machines and claims in the stores ─► plan ─► owners of claims ─► adopt, release ─► deletes ─► creates ─► status
//!                                    paused ─► claims that are retained ─────────────────────────────────────┘
//! ```
//!
//! Invariant: names follow from the set and the index, so that a pass that is repeated, by a killed
//! controller or one with a stale store, creates no machine twice. Before a machine is adopted or deleted
//! the set is read from the API server: one that is deleted, edited or paused meanwhile decides again. Each
//! such write carries the UID and the version of the machine that was read.
//! Failure: what the API server refuses is in the condition `ReplicaFailure` with its words, and repeated
//! with the back-off of the pass; the other steps of the pass are done all the same.

mod act;
mod claims;
mod machine;
mod observe;
mod own;
mod plan;
mod report;
mod revision;

use std::time::Duration;

use crds::VirtualMachineReplicaSet;
use crds::names::{ADMIN_PAUSED, PAUSED};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};

use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome, PassError, UNWATCHED};
use crate::reconcile::answers::again;

/// Time until the next pass of one that had more to write than a pass writes.
const NEXT: Duration = Duration::from_millis(200);

/// What became of the writes of a pass.
#[derive(Debug, Default)]
struct Work {
    /// When the pass began.
    now: Timestamp,
    /// Why a machine is missing: the reason and the message of `ReplicaFailure`.
    failure: Option<(&'static str, String)>,
    /// The first refusal, as the result of the pass.
    error: Option<anyhow::Error>,
    /// How often an object was in another version than expected.
    conflicts: usize,
    /// Something is left for the next pass.
    is_cut: bool,
    /// When something is to be looked at again that may end without a change of a watched object.
    again: Option<Duration>,
}

impl Work {
    /// The first failure is shown.
    fn fail(&mut self, reason: &'static str, message: String) {
        self.failure.get_or_insert((reason, message));
    }
}

/// One pass.
///
/// # Errors
///
/// What the API server reports of a write; see [`PassError`].
pub async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let found = ctx.stores.replica_sets.get(&key.reference());
    let Some(set) = found.filter(|set| set.metadata.deletion_timestamp.is_none()) else {
        // Its machines and claims have it as their owner: Kubernetes deletes them, or leaves them.
        ctx.shared.set_reports.forget(key);
        ctx.shared.condemned.forget(key);
        return Ok(Flow::Continue);
    };
    let now = (ctx.clock)();
    let revision = revision::current(&set);
    let seen = observe::observe(ctx, &set, &revision, now.0);
    let mut work = Work {
        now: now.0,
        ..Work::default()
    };
    if is_paused(&*set) {
        act::run_paused(ctx, &set, &mut work).await?;
    } else {
        act::run(ctx, &set, &seen, &revision, &mut work).await?;
    }
    let status = report::draft(&set, &seen, &work, &revision, &now);
    let rest = report::write_in_turn(ctx, &set, &status).await?;
    let available = seen.next.map(|at| {
        let left = at.duration_since(now.0).max(SignedDuration::from_secs(1));
        Duration::try_from(left).unwrap_or(NEXT)
    });
    if let Some(error) = work.error.take() {
        let due = [available, rest].into_iter().flatten().min();
        return match due.filter(|_| report::is_shown(&set, &work)) {
            // Numbers do not wait for the back-off of a failure that the status shows already.
            Some(due) => Ok(Flow::RequeueAfter(due.min(UNWATCHED))),
            None => Err(PassError::Failed(error)),
        };
    }
    if work.conflicts > 0 {
        return Err(again());
    }
    let cut = work.is_cut.then_some(NEXT);
    let next = [available, cut, rest, work.again]
        .into_iter()
        .flatten()
        .min();
    Ok(next.map_or(Flow::Continue, Flow::RequeueAfter))
}

/// Whether nothing is to be created or deleted.
fn is_paused(set: &impl Resource) -> bool {
    [PAUSED, ADMIN_PAUSED]
        .iter()
        .any(|key| set.annotations().contains_key(*key))
}

/// The name of the machine of this index.
fn machine_name(set: &VirtualMachineReplicaSet, index: u32) -> String {
    format!("{}-{index}", set.name_any())
}
