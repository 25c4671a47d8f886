//! What the queue does, step by step.
//!
//! Invariant: every vector of the fixture file is played, and there are twenty.
//! Failure: names the vector, the step and what was there instead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use workqueue::{Class, Config, Metrics, Options, Queue};

const VECTORS: &str = include_str!("fixtures/queue.txt");
const LEVELS: [i64; 6] = [0, 1, -1, -100, 99, 100];

#[derive(Default)]
struct Counts {
    depth: BTreeMap<String, i64>,
    adds: u64,
    retries: u64,
}

impl Metrics for Counts {
    fn depth(&mut self, class: Class, change: i64) {
        let label = match class {
            Class::Level(level) => level.to_string(),
            Class::Custom => "custom".to_owned(),
        };
        let depth = self.depth.entry(label).or_default();
        *depth += change;
        assert!(*depth >= 0, "a depth below zero");
    }
    fn added(&mut self) {
        self.adds += 1;
    }
    fn retried(&mut self) {
        self.retries += 1;
    }
}

struct Player {
    now: Duration,
    queue: Queue<String, Counts>,
}

#[test]
fn all_vectors_hold() {
    let mut ids = BTreeSet::new();
    for line in VECTORS
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
    {
        let (id, steps) = line.split_once(": ").unwrap();
        ids.insert(id);
        let config = Config {
            ageing: None,
            levels: LEVELS.to_vec(),
            ..Config::default()
        };
        let mut player = Player {
            now: Duration::from_secs(1),
            queue: Queue::with_metrics(config, Counts::default()),
        };
        for step in steps.split("; ") {
            player
                .step(step)
                .unwrap_or_else(|found| panic!("{id}: {step}: found {found} in: {line}"));
        }
    }
    let wanted: BTreeSet<String> = (1..=20).map(|n| format!("q{n}")).collect();
    assert_eq!(ids, wanted.iter().map(String::as_str).collect());
}

impl Player {
    fn step(&mut self, step: &str) -> Result<(), String> {
        let words: Vec<&str> = step.split(' ').collect();
        match words[..] {
            ["add", key, ref how @ ..] => self.add(key, how),
            ["fill", count, key] => {
                let (prefix, priority) = split(key);
                for n in 0..count.parse().unwrap() {
                    self.push(format!("{prefix}{n}"), Options::at(priority));
                }
            }
            ["spread", count] => {
                for n in 0..count.parse().unwrap() {
                    self.push(format!("k{n}"), Options::at(1000 + n));
                }
            }
            ["get", wanted] => {
                let found = self.queue.pop(self.now);
                let wanted = (wanted != "-").then(|| (split(wanted).0.to_owned(), split(wanted).1));
                let found = found.map(|popped| (popped.key, popped.priority));
                return same(&found, &wanted);
            }
            ["done", key] => self.queue.done(self.now, &key.to_owned()),
            ["forget", key] => self.queue.forget(&key.to_owned()),
            ["shutdown"] => self.queue.shut_down(),
            ["due", wanted] => {
                let found = self.queue.next_ready_at().map(|due| due - self.now);
                return same(&found, &time(wanted));
            }
            ["len", wanted] => return same(&self.queue.len(), &wanted.parse().unwrap()),
            ["adds", wanted] => {
                return same(&self.queue.metrics().adds, &wanted.parse().unwrap());
            }
            ["retries", wanted] => {
                return same(&self.queue.metrics().retries, &wanted.parse().unwrap());
            }
            ["depths", wanted] => {
                let sum: i64 = self.queue.metrics().depth.values().sum();
                return same(&sum, &wanted.parse().unwrap());
            }
            ["depth", wanted] => {
                let (label, wanted) = wanted.split_once('=').unwrap();
                let found = self.queue.metrics().depth.get(label).copied();
                return same(&found.unwrap_or_default(), &wanted.parse().unwrap());
            }
            [passes] => {
                self.now += time(passes.strip_prefix('+').unwrap()).unwrap();
                self.queue.advance(self.now);
            }
            _ => panic!("unknown step {step}"),
        }
        Ok(())
    }

    fn add(&mut self, key: &str, how: &[&str]) {
        let (key, priority) = split(key);
        let mut options = Options::at(priority);
        let how = match how {
            ["after", after, rest @ ..] => {
                options = options.after(time(after).unwrap_or(Duration::ZERO));
                rest
            }
            rest => rest,
        };
        match how {
            ["limited"] => options = options.rate_limited(),
            rest => assert!(rest.is_empty(), "unknown words {rest:?}"),
        }
        self.push(key.to_owned(), options);
    }

    fn push(&mut self, key: String, options: Options) {
        self.queue.push(self.now, key, options);
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T) -> Result<(), String> {
    (found == wanted)
        .then_some(())
        .ok_or_else(|| format!("{found:?}"))
}

/// `KEY[@PRIORITY]`
fn split(key: &str) -> (&str, i64) {
    key.split_once('@')
        .map_or((key, 0), |(key, priority)| (key, priority.parse().unwrap()))
}

/// `None` below zero.
fn time(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c == '-' || c.is_ascii_digit());
    let number: i64 = text[..text.len() - unit.len()].parse().unwrap();
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "h" => 3_600_000,
        _ => panic!("unknown unit {unit}"),
    };
    u64::try_from(number * millis)
        .ok()
        .map(Duration::from_millis)
}
