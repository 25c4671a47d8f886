//! Runs passes over machines: takes keys from the queue and returns verdicts.
//!
//! Invariant: nothing runs before every store was filled once; at most one pass per machine; how a
//! pass ended becomes a verdict here and nowhere else.
//! Failure: a pass that panics or overruns its time is counted, logged and repeated with a growing
//! delay.

pub mod backups;
pub mod groups;
pub mod images;
pub mod replica_sets;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use service::telemetry::one_line;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};
use workqueue::{Ageing, Config, Limiter, Outcome, Popped, RunConfig, Shared, Verdict};

use crate::config;
use crate::context::{Context, Key, Stores};
use crate::flow::{self, Flow, PassError, UNWATCHED};
use crate::intake::{Queue, facts};
use crate::metrics::{Metrics, QueueMetrics};
use crate::priority::Profile;
use crate::reconcile::vm::error::is_unwatched;

/// At most one of this many dispatches is by age.
const AGED_EVERY: u32 = 8;

/// The machines' queue, as configured.
#[must_use]
pub fn queue(config: &config::Config, rules: &Profile, metrics: QueueMetrics) -> Queue {
    let starvation = config.priority.starvation_after;
    let settings = Config {
        limiter: Limiter {
            base: config.runner.retry_min.get(),
            max: config.runner.retry_max.get(),
        },
        ageing: (!starvation.is_zero()).then(|| Ageing {
            starvation_after: starvation.get(),
            every: AGED_EVERY,
        }),
        levels: rules.levels.all(),
    };
    Queue::with_metrics(settings, metrics)
}

/// Works on the queue until `stop`; then lets passes that run end.
pub async fn run<P, F>(
    context: &Context,
    queue: Arc<Queue>,
    rules: Arc<Profile>,
    stop: CancellationToken,
    pass: P,
) where
    P: Fn(Context, Key) -> F + Clone + Send + 'static,
    F: Future<Output = flow::Outcome> + Send + 'static,
{
    let settings = &context.config;
    let config = RunConfig {
        workers: settings.runner.workers,
        reserve_below: settings
            .priority
            .reserve_worker
            .then(|| rules.levels.lowest_of_states()),
        timeout: Some(settings.runner.pass_timeout.get()),
        grace: settings.runner.drain.get(),
    };
    context.metrics.queue.workers(config.workers);
    let ready = ready(context.stores.clone(), Arc::clone(&context.metrics));
    let handler = |popped: Popped<Key>| {
        let context = context.clone();
        let rules = Arc::clone(&rules);
        let pass = pass.clone();
        let span = tracing::info_span!("vm", key = %popped.key, priority = popped.priority);
        // Said while keys are handed out: their passes begin in whichever order the runtime polls
        // them.
        span.in_scope(|| tracing::debug!(outcome = "dispatched", "pass dispatched"));
        async move {
            let _active = context.metrics.queue.active();
            let ended = pass(context.clone(), popped.key.clone()).await;
            verdict(&context, &rules, &popped.key, ended)
        }
        .instrument(span)
    };
    workqueue::run(queue, config, ready, stop, handler).await;
}

/// Works on a queue beside that of the machines until `stop`; then lets passes that run end. `span` is
/// that of a pass.
async fn run_beside<P, F>(
    context: &Context,
    queue: Arc<Shared<Key, QueueMetrics>>,
    metrics: QueueMetrics,
    workers: usize,
    stop: CancellationToken,
    span: fn(&Key) -> Span,
    pass: P,
) where
    P: Fn(Context, Key) -> F + Clone + Send + 'static,
    F: Future<Output = flow::Outcome> + Send + 'static,
{
    let settings = &context.config.runner;
    let config = RunConfig {
        workers,
        reserve_below: None,
        timeout: Some(settings.pass_timeout.get()),
        grace: settings.drain.get(),
    };
    metrics.workers(workers);
    let handler = |popped: Popped<Key>| {
        let context = context.clone();
        let metrics = metrics.clone();
        let pass = pass.clone();
        let span = span(&popped.key);
        async move {
            let _active = metrics.active();
            Verdict::from(outcome_of(pass(context, popped.key).await))
        }
        .instrument(span)
    };
    let ready = ready(context.stores.clone(), Arc::clone(&context.metrics));
    workqueue::run(queue, config, ready, stop, handler).await;
}

/// Returns when every store has been filled once.
async fn ready(stores: Stores, metrics: Arc<Metrics>) {
    match stores.ready().await {
        Ok(()) => {
            metrics.stores_filled.set(1);
            tracing::info!(stores = ?stores.sizes(), "stores filled");
        }
        // Their watches have ended, and so will the process.
        Err(_) => std::future::pending().await,
    }
}

/// The verdict for the queue.
fn verdict(context: &Context, rules: &Profile, key: &Key, ended: flow::Outcome) -> Verdict {
    let vm = context.stores.vm(key);
    let verdict = Verdict::from(outcome_of(ended));
    let deserved = vm.and_then(|vm| rules.of_requeue(&facts(&vm, &context.stores)));
    match deserved {
        Some(priority) => verdict.with_priority(priority),
        None => verdict,
    }
}

/// What becomes of a key whose pass ended so, machine or image.
fn outcome_of(ended: flow::Outcome) -> Outcome {
    match ended {
        Ok(Flow::Continue) => {
            tracing::debug!(outcome = "done", "pass completed");
            Outcome::Ok
        }
        Ok(Flow::Done(what)) => {
            tracing::debug!(reason = what, outcome = "done", "pass completed");
            Outcome::Ok
        }
        Ok(Flow::RequeueAfter(after)) => {
            tracing::debug!(again = ?after, outcome = "done", "pass completed");
            Outcome::After(after)
        }
        Ok(Flow::Waiting(reason)) => {
            tracing::info!(reason, outcome = "waiting", "pass waits");
            Outcome::Terminal
        }
        Err(error @ PassError::Conflict(_)) => {
            tracing::debug!(reason = %error, outcome = "retried", "pass repeated");
            Outcome::Requeue
        }
        Err(error) => {
            tracing::warn!(error = one_line(&error), outcome = "failed", "pass failed");
            if is_unwatched(&error) {
                Outcome::ErrorWithin(UNWATCHED)
            } else {
                Outcome::Error
            }
        }
    }
}
