//! Measures the queue in the shapes of controller-runtime's own benchmarks, as
//! `tests/tools/priorityqueue` does for that one; `cargo xtask bench queue` compares both.
//!
//! Invariant: prints one line of JSON, nanoseconds per item or bytes; asserts nothing.
//! Failure: an unknown shape ends with the usage.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints, and fails by panicking"
)]

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use workqueue::{Config, Options, Outcome, RunConfig, Shared, run};

const BATCH: u64 = 1000;
const ROUNDS: u32 = 9;
const PER_ROUND: Duration = Duration::from_millis(200);
const PRELOADED: u64 = 1_000_000;
const CONSUMERS: usize = 1000;
const PAGE: u64 = 4096;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    match words[..] {
        ["add-get-done"] => print("nanos", &add_get_done()),
        ["add"] => print("nanos", &add()),
        ["contended"] => print("nanos", &contended()),
        ["memory", count] => print("rss", &memory(count.parse().unwrap())),
        _ => {
            println!("usage: shapes add-get-done | add | contended | memory COUNT");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn queue() -> Arc<Shared<u64>> {
    Arc::new(Shared::new(Config::default()))
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}

fn add_get_done() -> Vec<f64> {
    let queue = queue();
    let runtime = runtime();
    measure(|| {
        fill(&queue, BATCH);
        runtime.block_on(async {
            for _ in 0..BATCH {
                let popped = queue.next().await.unwrap();
                queue.done(&popped.key);
            }
        });
    })
}

fn add() -> Vec<f64> {
    let queue = queue();
    measure(|| fill(&queue, BATCH))
}

fn contended() -> Vec<f64> {
    let queue = queue();
    let runtime = runtime();
    fill(&queue, PRELOADED);
    let stop = CancellationToken::new();
    let config = RunConfig {
        workers: CONSUMERS,
        reserve_below: None,
        timeout: None,
        grace: Duration::from_secs(1),
    };
    let handler = |_| async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Outcome::Ok.into()
    };
    let running = runtime.spawn(run(queue.clone(), config, async {}, stop.clone(), handler));
    let nanos = measure(|| fill(&queue, BATCH));
    stop.cancel();
    runtime.block_on(running).unwrap();
    nanos
}

fn memory(count: u64) -> Vec<f64> {
    let queue = queue();
    let before = resident();
    fill(&queue, count);
    assert_eq!(queue.len() as u64, count);
    vec![before, resident()]
}

fn fill(queue: &Shared<u64>, count: u64) {
    for key in 0..count {
        queue.push(key, Options::default());
    }
}

/// Nanoseconds per item, one number per round.
fn measure(mut work: impl FnMut()) -> Vec<f64> {
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let mut items = 0;
            while start.elapsed() < PER_ROUND {
                work();
                items += BATCH;
            }
            start.elapsed().as_secs_f64() * 1e9 / items as f64
        })
        .collect()
}

fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * PAGE) as f64
}

fn print(name: &str, samples: &[f64]) {
    println!("{{\"samples\":{{\"{name}\":{samples:?}}},\"facts\":{{}}}}");
}
