//! The shared queue: many keys under one lock, flights, reservations and what runs.
//!
//! Invariant: time is paused.
//! Failure: a wait that does not end is cut off by its deadline.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use workqueue::{Config, Metrics, Options, Outcome, RunConfig, Running, Shared, run};

#[derive(Default)]
struct Seen(Vec<Running>);

impl Metrics for Seen {
    fn running(&mut self, running: Running) {
        self.0.push(running);
    }
}

type Queue = Arc<Shared<&'static str, Seen>>;

fn queue() -> Queue {
    Arc::new(Shared::with_metrics(Config::default(), Seen::default()))
}

async fn next(queue: &Queue) -> Option<&'static str> {
    let next = timeout(Duration::from_secs(1), queue.next()).await;
    Some(next.ok()??.key)
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_pushed_together_leave_one_by_one_and_come_again_after_their_flight() {
    let queue = queue();
    assert!(queue.is_empty() && queue.lock().is_empty());
    queue.push_all([("a", Options::at(1)), ("b", Options::at(2))]);
    assert!(!queue.is_empty() && !queue.lock().is_empty());
    assert_eq!(next(&queue).await, Some("b"));
    assert_eq!(next(&queue).await, Some("a"));
    assert!(queue.is_empty());
    queue.push("a", Options::at(1));
    assert_eq!(next(&queue).await, None, "in flight");
    queue.done(&"a");
    assert_eq!(next(&queue).await, Some("a"));
}

/// A pool that records which keys were started. Keys that begin with `h` hang, the others end at
/// once.
fn pool(queue: &Queue, stop: &CancellationToken) -> mpsc::UnboundedReceiver<&'static str> {
    let (recorded, begun) = mpsc::unbounded_channel();
    let handler = move |popped: workqueue::Popped<&'static str>| {
        recorded.send(popped.key).unwrap();
        async move {
            if popped.key.starts_with('h') {
                pending::<()>().await;
            }
            Outcome::Ok.into()
        }
    };
    let config = RunConfig {
        workers: 4,
        timeout: None,
        grace: Duration::ZERO,
        ..RunConfig::default()
    };
    tokio::spawn(run(queue.clone(), config, async {}, stop.clone(), handler));
    begun
}

async fn begins(begun: &mut mpsc::UnboundedReceiver<&'static str>) -> Option<&'static str> {
    timeout(Duration::from_secs(1), begun.recv()).await.ok()?
}

#[tokio::test(start_paused = true)]
async fn only_high_work_that_is_under_way_reserves_a_worker() {
    let queue = queue();
    let stop = CancellationToken::new();
    let mut begun = pool(&queue, &stop);
    for key in ["x1", "x2", "x3"] {
        queue.push(key, Options::at(96));
        assert_eq!(begins(&mut begun).await, Some(key));
    }
    for key in ["h1", "h2", "h3"] {
        queue.push(key, Options::at(-1));
        assert_eq!(begins(&mut begun).await, Some(key));
    }
    queue.push("high", Options::at(96));
    assert_eq!(begins(&mut begun).await, Some("high"));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_reported_while_it_does() {
    let queue = queue();
    let stop = CancellationToken::new();
    let mut begun = pool(&queue, &stop);
    queue.push("hangs", Options::at(0));
    assert_eq!(begins(&mut begun).await, Some("hangs"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let reported = std::mem::take(&mut queue.lock().metrics().0);
    let last = reported.last().unwrap();
    assert_eq!(last.count, 1);
    assert!(last.longest >= Duration::from_secs(1), "{last:?}");
    stop.cancel();
}
