//! The workers: one per key, reservation, outcomes, gate and drain.
//!
//! Invariant: time is paused, so that delays are exact and cost nothing.
//! Failure: a run that does not end is cut off by its deadline.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use workqueue::{Config, Metrics, Options, Outcome, RunConfig, Shared, Tally, Verdict, run};

#[derive(Default)]
struct Tallies(Vec<Tally>);

impl Metrics for Tallies {
    fn reconciled(&mut self, tally: Tally, _: Duration) {
        self.0.push(tally);
    }
}

type Queue = Arc<Shared<&'static str, Tallies>>;

fn queue() -> Queue {
    Arc::new(Shared::with_metrics(Config::default(), Tallies::default()))
}

fn one_worker() -> RunConfig {
    RunConfig {
        workers: 1,
        ..RunConfig::default()
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_hours(1), what).await.unwrap()
}

/// Runs one worker that ends each pass with the next verdict, and records when each pass took place
/// and at which priority.
async fn passes(queue: &Queue, verdicts: Vec<Verdict>) -> Vec<(Duration, i64)> {
    let stop = CancellationToken::new();
    let start = Instant::now();
    let wanted = verdicts.len();
    let verdicts = Arc::new(Mutex::new(verdicts.into_iter()));
    let (recorded, mut records) = mpsc::unbounded_channel();
    let handler = move |popped: workqueue::Popped<_>| {
        recorded.send((start.elapsed(), popped.priority)).unwrap();
        let verdict = verdicts.lock().unwrap().next();
        async move { verdict.unwrap_or(Outcome::Ok.into()) }
    };
    let running = run(queue.clone(), one_worker(), async {}, stop.clone(), handler);
    let mut seen = Vec::new();
    let watch = async {
        while let Ok(pass) = timeout(Duration::from_hours(2), records.recv()).await {
            seen.push(pass.unwrap());
        }
        stop.cancel();
    };
    tokio::join!(running, watch);
    assert!(seen.len() >= wanted, "only {seen:?}");
    seen
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test(start_paused = true)]
async fn an_error_comes_back_after_back_off_at_the_priority_it_had() {
    let queue = queue();
    queue.push("a", Options::at(100));
    let error = Verdict::from(Outcome::Error);
    let seen = passes(&queue, vec![error, error, error]).await;
    let gaps: Vec<_> = seen.windows(2).map(|w| w[1].0 - w[0].0).collect();
    // Timers have a resolution of a millisecond and round up.
    for (gap, wanted) in gaps.iter().zip([5, 10, 20]) {
        assert!((ms(wanted)..ms(wanted + 2)).contains(gap), "{gaps:?}");
    }
    assert!(seen.iter().all(|(_, priority)| *priority == 100));
    let tallies = &queue.lock().metrics().0.clone();
    assert_eq!(tallies[2..], [Tally::Error, Tally::Success]);
    assert_eq!(queue.lock().failures(&"a"), 0, "success forgets");
}

#[tokio::test(start_paused = true)]
async fn an_error_whose_cause_is_not_watched_comes_back_soon_enough() {
    let queue = queue();
    queue.push("a", Options::at(0));
    let error = Verdict::from(Outcome::ErrorWithin(ms(12)));
    let seen = passes(&queue, vec![error, error, error, error]).await;
    let gaps: Vec<_> = seen.windows(2).map(|w| w[1].0 - w[0].0).collect();
    for (gap, wanted) in gaps.iter().zip([5, 10, 12, 12]) {
        assert!((ms(wanted)..ms(wanted + 2)).contains(gap), "{gaps:?}");
    }
    assert_eq!(queue.lock().metrics().0[..2], [Tally::Error, Tally::Error]);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_error_does_not_come_back_and_keeps_its_failures() {
    let queue = queue();
    queue.push("a", Options::at(1));
    let verdicts = vec![Outcome::Error.into(), Outcome::Terminal.into()];
    let seen = passes(&queue, verdicts).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(queue.lock().failures(&"a"), 1);
    assert_eq!(queue.lock().metrics().0, [Tally::Error, Tally::Terminal]);
}

#[tokio::test(start_paused = true)]
async fn a_delay_forgets_failures_and_a_recomputed_priority_replaces_the_old_one() {
    let queue = queue();
    queue.push("a", Options::at(-1));
    let later = Verdict::from(Outcome::After(Duration::from_mins(1)));
    let verdicts = vec![
        Verdict::from(Outcome::Requeue).with_priority(99),
        later,
        later.with_priority(97),
        Outcome::After(Duration::ZERO).into(),
    ];
    let seen = passes(&queue, verdicts).await;
    let priorities: Vec<_> = seen.iter().map(|(_, priority)| *priority).collect();
    assert_eq!(priorities, [-1, 99, 99, 97]);
    assert!(seen[2].0 - seen[1].0 >= Duration::from_mins(1));
    assert_eq!(queue.lock().failures(&"a"), 0);
    let tallies = [
        Tally::Requeue,
        Tally::RequeueAfter,
        Tally::RequeueAfter,
        Tally::Success,
    ];
    assert_eq!(queue.lock().metrics().0, tallies);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_handed_out_before_the_gate_opens() {
    let queue = queue();
    queue.push("a", Options::at(1));
    let (open, gate) = oneshot::channel::<()>();
    let stop = CancellationToken::new();
    let (recorded, mut records) = mpsc::unbounded_channel();
    let handler = move |popped: workqueue::Popped<_>| {
        recorded.send(popped.key).unwrap();
        async { Outcome::Ok.into() }
    };
    let gate = async { gate.await.unwrap() };
    let running = tokio::spawn(run(
        queue.clone(),
        RunConfig::default(),
        gate,
        stop.clone(),
        handler,
    ));
    assert!(timeout(ms(60_000), records.recv()).await.is_err());
    open.send(()).unwrap();
    assert_eq!(soon(records.recv()).await, Some("a"));
    stop.cancel();
    soon(running).await.unwrap();
    queue.push("b", Options::at(1));
    assert_eq!(queue.len(), 0, "a stopped queue drops what is pushed");
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_gate_opens_ends_the_run() {
    let queue = queue();
    let stop = CancellationToken::new();
    stop.cancel();
    let handler = |_| async { Outcome::Ok.into() };
    soon(run(
        queue.clone(),
        RunConfig::default(),
        pending(),
        stop,
        handler,
    ))
    .await;
    assert!(queue.lock().is_shut_down());
}

/// Eight high keys that hang and one low key: which are in work?
async fn in_work(config: RunConfig) -> Vec<&'static str> {
    let queue = queue();
    for key in ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"] {
        queue.push(key, Options::at(96));
    }
    queue.push("low", Options::at(-1));
    let stop = CancellationToken::new();
    let (recorded, mut records) = mpsc::unbounded_channel();
    let handler = move |popped: workqueue::Popped<_>| {
        recorded.send(popped.key).unwrap();
        pending()
    };
    let running = tokio::spawn(run(queue, config, async {}, stop.clone(), handler));
    let mut seen = Vec::new();
    while let Ok(Some(key)) = timeout(Duration::from_secs(1), records.recv()).await {
        seen.push(key);
    }
    stop.cancel();
    soon(running).await.unwrap();
    seen
}

#[tokio::test(start_paused = true)]
async fn hanging_high_work_leaves_one_worker_to_routine_work() {
    let config = RunConfig {
        timeout: None,
        ..RunConfig::default()
    };
    let seen = in_work(config).await;
    assert_eq!(seen, ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "low"]);
    let off = RunConfig {
        reserve_below: None,
        ..config
    };
    assert!(!in_work(off).await.contains(&"low"));
    let few = RunConfig {
        workers: 3,
        ..config
    };
    assert_eq!(in_work(few).await, ["h1", "h2", "h3"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_overruns_its_time_or_panics_counts_as_an_error() {
    let queue = queue();
    queue.push("slow", Options::at(2));
    queue.push("broken", Options::at(1));
    let stop = CancellationToken::new();
    let (recorded, mut records) = mpsc::unbounded_channel();
    let handler = move |popped: workqueue::Popped<_>| {
        recorded.send(popped.key).unwrap();
        async move {
            if popped.key == "slow" {
                pending::<()>().await;
            }
            panic!("on purpose");
        }
    };
    let running = tokio::spawn(run(
        queue.clone(),
        one_worker(),
        async {},
        stop.clone(),
        handler,
    ));
    assert_eq!(soon(records.recv()).await, Some("slow"));
    assert_eq!(soon(records.recv()).await, Some("broken"));
    assert_eq!(soon(records.recv()).await, Some("slow"), "it comes back");
    stop.cancel();
    soon(running).await.unwrap();
    let tallies = queue.lock().metrics().0.clone();
    assert_eq!(tallies, [Tally::Timeout, Tally::Panic]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_running_handlers_end_and_drops_those_that_do_not() {
    let queue = queue();
    queue.push("ends", Options::at(1));
    queue.push("hangs", Options::at(1));
    queue.push("waits", Options::at(0));
    let stop = CancellationToken::new();
    let started = Arc::new(Semaphore::new(0));
    let config = RunConfig {
        workers: 2,
        ..RunConfig::default()
    };
    let count = started.clone();
    let handler = move |popped: workqueue::Popped<_>| {
        count.add_permits(1);
        async move {
            if popped.key == "hangs" {
                pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            Verdict::from(Outcome::Ok)
        }
    };
    let running = tokio::spawn(run(queue.clone(), config, async {}, stop.clone(), handler));
    soon(started.acquire_many(2)).await.unwrap().forget();
    let stopped = Instant::now();
    stop.cancel();
    soon(running).await.unwrap();
    assert_eq!(stopped.elapsed().as_secs(), config.grace.as_secs());
    assert_eq!(queue.lock().metrics().0, [Tally::Success]);
    assert_eq!(queue.len(), 1, "nothing new was handed out");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_wait_for_a_key() {
    let queue = queue();
    let waiting = queue.clone();
    let next = tokio::spawn(async move { waiting.next().await });
    queue.push("a", Options::at(3).after(Duration::from_secs(1)));
    let popped = soon(next).await.unwrap().unwrap();
    assert_eq!((popped.key, popped.priority), ("a", 3));
    queue.push("a", Options::at(1));
    let waiting = queue.clone();
    let next = tokio::spawn(async move { waiting.next().await });
    tokio::task::yield_now().await;
    queue.shut_down();
    assert_eq!(soon(next).await.unwrap(), None);
    queue.push("b", Options::at(1));
    assert_eq!(queue.len(), 1, "the push was dropped");
    assert_eq!(queue.next().await, None);
}
