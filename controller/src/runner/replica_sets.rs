//! Runs passes over replica sets, with a queue of their own, so that sets never delay machines.
//!
//! Invariant: as for machines: nothing runs before every store was filled once; at most one pass per set.
//! Failure: a pass that fails or overruns its time is repeated with a growing delay.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::run_beside;
use crate::context::{Context, Key};
use crate::intake::ReplicaSetQueue;
use crate::reconcile;

/// Passes at a time. One that creates machines has a request for each.
const WORKERS: usize = 4;

/// Works on the queue until `stop`; then lets passes that run end.
pub async fn run(context: &Context, queue: Arc<ReplicaSetQueue>, stop: CancellationToken) {
    let metrics = context.metrics.replica_sets.clone();
    let span = |key: &Key| tracing::info_span!("replica_set", %key);
    let pass = |context: Context, key: Key| async move {
        Box::pin(reconcile::replica_set::reconcile(&context, &key)).await
    };
    run_beside(context, queue, metrics, WORKERS, stop, span, pass).await;
}
