//! Runs passes over backups and over their schedules, with a queue each, so that they never delay machines.
//!
//! Invariant: as for machines: nothing runs before every store was filled once; at most one pass per object.
//! Failure: a pass that fails or overruns its time is repeated with a growing delay.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::run_beside;
use crate::context::{Context, Key};
use crate::intake::{BackupQueue, BackupScheduleQueue};
use crate::reconcile;

/// Passes at a time: each is a few requests to the API server.
const WORKERS: usize = 4;

/// Passes over schedules at a time.
const SCHEDULE_WORKERS: usize = 2;

/// Works on the queue of backups until `stop`; then lets passes that run end.
pub async fn run(context: &Context, queue: Arc<BackupQueue>, stop: CancellationToken) {
    let metrics = context.metrics.backups.clone();
    let span = |key: &Key| tracing::info_span!("backup", %key);
    let pass = |context: Context, key: Key| async move {
        Box::pin(reconcile::backup::reconcile(&context, &key)).await
    };
    run_beside(context, queue, metrics, WORKERS, stop, span, pass).await;
}

/// The same for the queue of schedules.
pub async fn run_schedules(
    context: &Context,
    queue: Arc<BackupScheduleQueue>,
    stop: CancellationToken,
) {
    let metrics = context.metrics.backup_schedules.clone();
    let span = |key: &Key| tracing::info_span!("backup_schedule", %key);
    let pass = |context: Context, key: Key| async move {
        Box::pin(reconcile::backup_schedule::reconcile(&context, &key)).await
    };
    run_beside(context, queue, metrics, SCHEDULE_WORKERS, stop, span, pass).await;
}
