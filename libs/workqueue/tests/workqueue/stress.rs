//! The queue under real concurrency.
//!
//! Invariant: real threads and real time; what is asserted holds on a slow machine too.
//! Failure: a deadlock shows as a deadline that passed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use workqueue::{Config, Metrics, Options, Outcome, RunConfig, Shared, run};

const DEADLINE: Duration = Duration::from_secs(60);

/// Numbers that differ from run to run.
fn random(n: usize) -> usize {
    let number = RandomState::new().hash_one(n);
    usize::try_from(number % (1 << 31)).unwrap()
}

fn pool(workers: usize) -> RunConfig {
    RunConfig {
        workers,
        ..RunConfig::default()
    }
}

/// Notifies of each key that is no longer worked on.
struct Ends(Arc<Notify>);

impl Metrics for Ends {
    fn worked(&mut self, _: Duration) {
        self.0.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_producers_and_a_hundred_consumers_lose_nothing_and_never_share_a_key() {
    let ended = Arc::new(Notify::new());
    let metrics = Ends(ended.clone());
    let queue = Arc::new(Shared::<usize, _>::with_metrics(Config::default(), metrics));
    let working = Arc::new(Mutex::new(HashSet::new()));
    // The highest priority that each key was pushed with since it was last handed out.
    let pushed = Arc::new(Mutex::new(HashMap::<usize, i64>::new()));
    let stop = CancellationToken::new();
    let handler = {
        let working = working.clone();
        let pushed = pushed.clone();
        move |popped: workqueue::Popped<usize>| {
            let working = working.clone();
            let pushed = pushed.clone();
            async move {
                assert!(working.lock().unwrap().insert(popped.key), "two at once");
                pushed.lock().unwrap().remove(&popped.key);
                tokio::task::yield_now().await;
                working.lock().unwrap().remove(&popped.key);
                Outcome::Ok.into()
            }
        }
    };
    let running = tokio::spawn(run(
        queue.clone(),
        pool(100),
        async {},
        stop.clone(),
        handler,
    ));
    let mut producers = JoinSet::new();
    for producer in 0..10 {
        let queue = queue.clone();
        let pushed = pushed.clone();
        producers.spawn(async move {
            for n in 0..1000 {
                let dice = random(producer * 1000 + n);
                let key = dice % 300;
                let priority = (dice % 7) as i64 - 3;
                let delay = Duration::from_millis((dice % 11) as u64);
                pushed.lock().unwrap().insert(key, priority);
                queue.push(key, Options::at(priority).after(delay));
                if n % 50 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    timeout(DEADLINE, producers.join_all()).await.unwrap();
    // Every key that was pushed is handed out after its last push. A key that was handed out before
    // a push and is noted after it still waits in the queue.
    let drained = async {
        loop {
            let (running, waiting) = {
                let inner = queue.lock();
                (inner.running(queue.now()).count, inner.waiting())
            };
            if pushed.lock().unwrap().is_empty() && running == 0 && waiting == 0 {
                return;
            }
            ended.notified().await;
        }
    };
    timeout(DEADLINE, drained).await.unwrap();
    assert_eq!(queue.len(), 0);
    stop.cancel();
    timeout(DEADLINE, running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_rounds_of_a_thousand_keys_are_drained() {
    for round in 0..20 {
        let queue = Arc::new(Shared::<usize>::new(Config::default()));
        let handled = Arc::new(AtomicUsize::new(0));
        let all = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let count = handled.clone();
        let done = all.clone();
        let handler = move |_| {
            let count = count.clone();
            let done = done.clone();
            async move {
                if count.fetch_add(1, Ordering::Relaxed) + 1 == 1000 {
                    done.notify_one();
                }
                Outcome::Ok.into()
            }
        };
        let running = tokio::spawn(run(
            queue.clone(),
            pool(100),
            async {},
            stop.clone(),
            handler,
        ));
        for key in 0..1000 {
            let dice = random(round * 1000 + key);
            let delay = if dice.is_multiple_of(10) { dice % 9 } else { 0 };
            queue.push(
                key,
                Options::default().after(Duration::from_millis(delay as u64)),
            );
        }
        timeout(DEADLINE, all.notified()).await.unwrap();
        stop.cancel();
        timeout(DEADLINE, running).await.unwrap().unwrap();
        assert_eq!(handled.load(Ordering::Relaxed), 1000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shutdown_in_the_middle_of_everything_lets_everybody_return() {
    for round in 0..50 {
        let queue = Arc::new(Shared::<usize>::new(Config::default()));
        let busy = Arc::new(Semaphore::new(0));
        let mut tasks = JoinSet::new();
        for worker in 0..20 {
            let queue = queue.clone();
            let busy = busy.clone();
            tasks.spawn(async move {
                for n in 0.. {
                    if n == 20 {
                        busy.add_permits(1);
                    }
                    queue.push(random(n) % 50, Options::at(worker));
                    let popped = queue.lock().pop(queue.now());
                    if let Some(popped) = popped {
                        queue.done(&popped.key);
                    }
                    if queue.lock().is_shut_down() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        let all = timeout(DEADLINE, busy.acquire_many(20)).await;
        all.unwrap().unwrap().forget();
        queue.shut_down();
        assert!(
            timeout(DEADLINE, tasks.join_all()).await.is_ok(),
            "round {round}"
        );
    }
}
