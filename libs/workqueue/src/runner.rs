//! The workers of a queue.
//!
//! One task hands keys to at most `workers` handlers at a time; each handler is a task of its own.
//! Handing out is where the reservation applies: at most `workers - 1` handlers work on high
//! priorities at once, so that a burst of them, or some that hang, never stops routine work.
//!
//! Invariant: a key is in flight exactly while its handler runs, however the handler ends.
//! Failure: a handler that panics or overruns its time counts as an error, and its key returns
//! after back-off.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{Metrics, Outcome, Popped, Shared, Tally, Verdict};

/// How often the metrics of unfinished work are refreshed.
const REFRESH: Duration = Duration::from_millis(500);

/// How the pool works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunConfig {
    /// Handlers at a time; zero counts as one.
    pub workers: usize,
    /// With four workers or more, one is kept free for priorities below this. `None`: no
    /// reservation.
    pub reserve_below: Option<i64>,
    /// A handler that takes longer is dropped. `None`: no limit.
    pub timeout: Option<Duration>,
    /// How long handlers may continue after the stop signal.
    pub grace: Duration,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            workers: 8,
            reserve_below: Some(96),
            timeout: Some(Duration::from_mins(5)),
            grace: Duration::from_secs(20),
        }
    }
}

/// A handler that runs.
struct Flight<K> {
    key: K,
    priority: i64,
    since: Instant,
}

struct Pool<K, M> {
    queue: Arc<Shared<K, M>>,
    config: RunConfig,
    flights: HashMap<Id, Flight<K>>,
    /// Handlers with priorities that the reservation holds back.
    high: usize,
}

/// What a handler's task ends with; `None`: it overran its time.
type Ended = Result<(Id, Option<Verdict>), JoinError>;

/// Waits for `gate` (the stores being ready, say), then works on the queue until `stop`. Then
/// nothing new is handed out, the queue drops what is pushed, and running handlers have
/// [`RunConfig::grace`] to end.
pub async fn run<K, M, G, H, F>(
    queue: Arc<Shared<K, M>>,
    config: RunConfig,
    gate: G,
    stop: CancellationToken,
    handler: H,
) where
    K: Hash + Eq + Clone,
    M: Metrics,
    G: Future<Output = ()>,
    H: Fn(Popped<K>) -> F,
    F: Future<Output = Verdict> + Send + 'static,
{
    tokio::select! {
        biased;
        () = stop.cancelled() => return queue.shut_down(),
        () = gate => {}
    }
    let mut pool = Pool {
        queue,
        config,
        flights: HashMap::new(),
        high: 0,
    };
    let mut tasks = JoinSet::new();
    let mut refresh = interval(REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let due = pool.hand_out(&mut tasks, &handler);
        let wanting = pool.flights.len() < pool.workers();
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                pool.settle(ended);
                while let Some(ended) = tasks.try_join_next_with_id() {
                    pool.settle(ended);
                }
            }
            () = pool.queue.changed_or(due), if wanting => {}
            _ = refresh.tick(), if !pool.flights.is_empty() => pool.refresh(),
        }
    }
    pool.drain(tasks).await;
}

impl<K: Hash + Eq + Clone, M: Metrics> Pool<K, M> {
    fn workers(&self) -> usize {
        self.config.workers.max(1)
    }

    /// Starts as many handlers as may run; returns when the next key becomes ready.
    fn hand_out<H, F>(
        &mut self,
        tasks: &mut JoinSet<Option<Verdict>>,
        handler: &H,
    ) -> Option<Duration>
    where
        H: Fn(Popped<K>) -> F,
        F: Future<Output = Verdict> + Send + 'static,
    {
        let since = Instant::now();
        while self.flights.len() < self.workers() {
            let popped = {
                let mut queue = self.queue.lock();
                match queue.pop_below(self.queue.now(), self.limit()) {
                    Some(popped) => popped,
                    None => return queue.next_ready_at(),
                }
            };
            if self.is_high(popped.priority) {
                self.high += 1;
            }
            let flight = Flight {
                key: popped.key.clone(),
                priority: popped.priority,
                since,
            };
            let limit = self.config.timeout;
            let work = handler(popped);
            let task = tasks.spawn(async move {
                match limit {
                    Some(limit) => timeout(limit, work).await.ok(),
                    None => Some(work.await),
                }
            });
            self.flights.insert(task.id(), flight);
        }
        None
    }

    /// What may be handed out now: everything, or only what is below the reservation.
    fn limit(&self) -> Option<i64> {
        let workers = self.workers();
        let reserved = workers >= 4 && self.high + 1 >= workers;
        self.config.reserve_below.filter(|_| reserved)
    }

    fn is_high(&self, priority: i64) -> bool {
        self.config
            .reserve_below
            .is_some_and(|limit| priority >= limit)
    }

    /// Gives a key back and queues it again as its handler asks.
    fn settle(&mut self, ended: Ended) {
        let (id, verdict, tally) = match ended {
            Ok((id, Some(verdict))) => (id, verdict, verdict.tally()),
            Ok((id, None)) => (id, Outcome::Error.into(), Tally::Timeout),
            Err(error) => (error.id(), Outcome::Error.into(), Tally::Panic),
        };
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        if self.is_high(flight.priority) {
            self.high -= 1;
        }
        if matches!(tally, Tally::Timeout | Tally::Panic) {
            tracing::error!(?tally, took = ?flight.since.elapsed(), "worker panicked");
        }
        let settlement = verdict.settle(flight.priority);
        let now = self.queue.now();
        let mut queue = self.queue.lock();
        if settlement.forget {
            queue.forget(&flight.key);
        }
        if let Some(options) = settlement.push {
            queue.push(now, flight.key.clone(), options);
        }
        queue.done(now, &flight.key);
        queue.metrics().reconciled(tally, flight.since.elapsed());
    }

    fn refresh(&self) {
        let now = self.queue.now();
        let mut queue = self.queue.lock();
        let running = queue.running(now);
        queue.metrics().running(running);
    }

    /// Lets running handlers end, and drops those that do not in time.
    async fn drain(mut self, mut tasks: JoinSet<Option<Verdict>>) {
        self.queue.shut_down();
        let deadline = Instant::now() + self.config.grace;
        while let Ok(Some(ended)) = timeout_at(deadline, tasks.join_next_with_id()).await {
            self.settle(ended);
        }
        if !tasks.is_empty() {
            tracing::warn!(left = tasks.len(), "workers still running at the deadline");
        }
        tasks.shutdown().await;
        self.refresh();
    }
}
