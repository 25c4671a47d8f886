//! Runs passes over images, with a queue of their own, so that images never delay machines.
//!
//! Invariant: as for machines: nothing runs before every store was filled once; at most one pass
//! per image.
//! Failure: a pass that fails or overruns its time is repeated with a growing delay.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use workqueue::{Config, Limiter, Popped, RunConfig, Verdict};

use super::{outcome_of, ready};
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
    let settings = &context.config.runner;
    let config = RunConfig {
        workers: WORKERS,
        reserve_below: None,
        timeout: Some(settings.pass_timeout.get()),
        grace: settings.drain.get(),
    };
    context.metrics.images.workers(config.workers);
    let handler = |popped: Popped<Key>| {
        let context = context.clone();
        let span = tracing::info_span!("image", key = %popped.key);
        async move {
            let _active = context.metrics.images.active();
            let ended = reconcile::image::reconcile(&context, &popped.key).await;
            Verdict::from(outcome_of(ended))
        }
        .instrument(span)
    };
    let ready = ready(context.stores.clone(), Arc::clone(&context.metrics));
    workqueue::run(queue, config, ready, stop, handler).await;
}
