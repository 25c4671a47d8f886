//! Runs passes over groups, with a queue of their own, so that groups never delay machines.
//!
//! Invariant: as for machines: nothing runs before every store was filled once; at most one pass per
//! group.
//! Failure: a pass that fails or overruns its time is repeated with a growing delay.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::run_beside;
use crate::context::{Context, Key};
use crate::intake::GroupQueue;
use crate::reconcile;

/// Passes at a time. One over a large group has a request for each member.
const WORKERS: usize = 4;

/// Works on the queue until `stop`; then lets passes that run end.
pub async fn run(context: &Context, queue: Arc<GroupQueue>, stop: CancellationToken) {
    let metrics = context.metrics.groups.clone();
    let span = |key: &Key| tracing::info_span!("group", %key);
    let pass = |context: Context, key: Key| async move {
        Box::pin(reconcile::group::reconcile(&context, &key)).await
    };
    run_beside(context, queue, metrics, WORKERS, stop, span, pass).await;
}
