//! Runs passes over images, with a queue of their own, so that images never delay machines.
//!
//! Invariant: as for machines: nothing runs before every store was filled once; at most one pass
//! per image.
//! Failure: a pass that fails or overruns its time is repeated with a growing delay.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use workqueue::{Config, Limiter};

use super::run_beside;
use crate::context::{Context, Key};
use crate::intake::ImageQueue;
use crate::metrics::QueueMetrics;
use crate::{config, reconcile};

/// Passes at a time: each is a few requests to the API server.
const WORKERS: usize = 2;

/// The images' queue, with the delays of the machines'.
#[must_use]
pub fn queue(config: &config::Config, metrics: QueueMetrics) -> ImageQueue {
    let config = Config {
        limiter: Limiter {
            base: config.runner.retry_min.get(),
            max: config.runner.retry_max.get(),
        },
        ..Config::default()
    };
    ImageQueue::with_metrics(config, metrics)
}

/// Works on the queue until `stop`; then lets passes that run end.
pub async fn run(context: &Context, queue: Arc<ImageQueue>, stop: CancellationToken) {
    let metrics = context.metrics.images.clone();
    let span = |key: &Key| tracing::info_span!("image", %key);
    let pass = |context: Context, key: Key| async move {
        Box::pin(reconcile::image::reconcile(&context, &key)).await
    };
    run_beside(context, queue, metrics, WORKERS, stop, span, pass).await;
}
