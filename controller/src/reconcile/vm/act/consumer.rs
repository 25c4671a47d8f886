//! The first consumer of data volumes: a pod without a guest that uses their claims.
//!
//! Some storage has CDI begin to fill a claim only when a pod uses it (phase `WaitForFirstConsumer`). A
//! new machine with a disk on its node has a placeholder by then, which is that pod. One with its root
//! disk in a claim, or with a template that was added later, gets its placeholder here.
//!
//! Invariant: the machine's own pod is never the first consumer: its guest and CDI would write the same
//! disk. A claim root holds no place: its placeholder goes when CDI has begun.
//! Failure: a placeholder that failed is replaced after a while.

use super::effects;
use super::provision::{self, GRACE};
use crate::flow::{Flow, Outcome};
use crate::reconcile::vm::observe::{find, pods};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites;

/// One step while the disks of the machine are waited for.
pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let is_needed = prerequisites::wait_for_consumer(pass);
    let has_claim = pass.root_claim().is_some();
    match find::placeholder(pass) {
        None if is_needed => {
            let prerequisites = prerequisites::all(pass).await?;
            let node = pass.node_name().filter(|_| !has_claim);
            provision::create_placeholder(pass, &prerequisites, node.as_deref()).await?;
            Ok(Flow::Done("made the first consumer"))
        }
        Some(pod) if pods::is_over(&pod) => provision::remove_failed(pass, &pod).await,
        Some(pod) if !is_needed && has_claim => {
            effects::delete(pass, &pod, GRACE).await?;
            Ok(Flow::Continue)
        }
        _ => Ok(Flow::Continue),
    }
}
