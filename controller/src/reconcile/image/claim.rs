//! An image in a claim, which the storage clones for each machine.
//!
//! Invariant: reads the store; a claim's event wakes the images that name it. No node reads the disk.
//! Failure: a claim that does not exist, or is not bound.

use crds::TaskKind;

use super::inspect::Answer;
use super::object::Object;
use crate::context::{Context, Key};
use crate::flow::Outcome;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::disk_bytes;

/// Its state; ends the reading of a source that it had before.
pub(super) async fn observe(ctx: &Context, object: &Object) -> Outcome<Answer> {
    for task in ctx.stores.tasks_of(object.uid()) {
        if task.spec.kind == TaskKind::InspectImage {
            node_tasks::remove_unchanged(ctx, &task).await?;
        }
    }
    let name = object.claim().unwrap_or_default();
    let key = Key::new(object.key().namespace, name);
    let Some(claim) = ctx.stores.claims.get(&key.reference()) else {
        return Ok(Answer::NoClaim(format!("claim {name} does not exist")));
    };
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    Ok(match phase {
        Some("Bound") => Answer::Claim(disk_bytes(&claim)),
        _ => Answer::NoClaim(format!(
            "claim {name} is not bound: only a bound claim can be cloned"
        )),
    })
}
