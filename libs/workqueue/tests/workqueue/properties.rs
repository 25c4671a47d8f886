//! Rules that hold for every sequence of calls.
//!
//! Invariant: the queue is compared with a model so simple that it is right by reading: a list that
//! is sorted at each pop.
//! Failure: proptest prints the shortest sequence that breaks a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use workqueue::{Ageing, Config, Options, Popped, Queue};

#[derive(Clone, Debug)]
enum Call {
    Push(u8, i64, u64),
    Pop(Option<i64>),
    Done(prop::sample::Index),
    Forget(u8),
    Pass(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let priority = prop::sample::select(vec![-100_i64, -1, 0, 97, 100]);
    let delay = prop_oneof![3 => Just(0_u64), 1 => 1_u64..20];
    let limit = prop::option::weighted(0.3, Just(96_i64));
    let call = prop_oneof![
        6 => (0_u8..12, priority, delay).prop_map(|(k, p, d)| Call::Push(k, p, d)),
        4 => limit.prop_map(Call::Pop),
        3 => any::<prop::sample::Index>().prop_map(Call::Done),
        1 => (0_u8..12).prop_map(Call::Forget),
        1 => (1_u64..15).prop_map(Call::Pass),
    ];
    vec(call, 1..200)
}

/// One queued key.
#[derive(Clone, Debug)]
struct Entry {
    priority: i64,
    sequence: u64,
    due: Option<u64>,
}

#[derive(Default)]
struct Model {
    now: u64,
    sequence: u64,
    entries: BTreeMap<u8, Entry>,
    flying: BTreeSet<u8>,
}

impl Model {
    fn tick(&mut self) {
        let mut due: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, e)| e.due.is_some_and(|due| due <= self.now))
            .map(|(k, e)| (e.due, -e.priority, e.sequence, *k))
            .collect();
        due.sort_unstable();
        for (.., key) in due {
            self.sequence += 1;
            let entry = self.entries.get_mut(&key).unwrap();
            (entry.due, entry.sequence) = (None, self.sequence);
        }
    }

    fn push(&mut self, key: u8, priority: i64, delay: u64) {
        let covered = |old: &Entry| old.due.is_none() && old.priority >= priority;
        if self.entries.get(&key).is_some_and(covered) {
            return;
        }
        self.tick();
        self.sequence += 1;
        let due = (delay > 0).then_some(self.now + delay);
        let sequence = self.sequence;
        let Some(old) = self.entries.get_mut(&key) else {
            let new = Entry {
                priority,
                sequence,
                due,
            };
            self.entries.insert(key, new);
            return;
        };
        if priority > old.priority || (old.due.is_some() && due.is_none()) {
            old.sequence = sequence;
        }
        old.priority = old.priority.max(priority);
        old.due = match (old.due, due) {
            (Some(old), Some(new)) => Some(old.min(new)),
            _ => None,
        };
    }

    fn pop(&mut self, limit: Option<i64>) -> Option<(u8, i64)> {
        self.tick();
        let candidates = self.entries.iter().filter(|(key, e)| {
            e.due.is_none()
                && !self.flying.contains(key)
                && limit.is_none_or(|limit| e.priority < limit)
        });
        let (key, entry) = candidates.min_by_key(|(_, e)| (-e.priority, e.sequence))?;
        let popped = (*key, entry.priority);
        self.entries.remove(&popped.0);
        self.flying.insert(popped.0);
        Some(popped)
    }
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn strict() -> Config {
    Config {
        ageing: None,
        ..Config::default()
    }
}

/// 2,000, or as many as `PROPTEST_CASES` requests.
fn cases() -> u32 {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = ProptestConfig::default().cases;
    if is_set { cases } else { 2000 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn the_queue_does_what_the_model_does(calls in calls()) {
        let mut queue = Queue::new(strict());
        let mut model = Model::default();
        let mut flying: Vec<u8> = Vec::new();
        for call in calls {
            match call {
                Call::Push(key, priority, delay) => {
                    let options = Options::at(priority).after(millis(delay));
                    queue.push(millis(model.now), key, options);
                    model.push(key, priority, delay);
                }
                Call::Pop(limit) => {
                    let popped = queue.pop_below(millis(model.now), limit);
                    let popped = popped.map(|Popped { key, priority }| (key, priority));
                    prop_assert_eq!(popped, model.pop(limit));
                    if let Some((key, _)) = popped {
                        prop_assert!(!flying.contains(&key), "handed out twice");
                        flying.push(key);
                    }
                }
                Call::Done(index) if !flying.is_empty() => {
                    let key = flying.swap_remove(index.index(flying.len()));
                    queue.done(millis(model.now), &key);
                    model.flying.remove(&key);
                }
                Call::Done(_) => {}
                Call::Forget(key) => queue.forget(&key),
                Call::Pass(ms) => {
                    model.now += ms;
                    model.tick();
                    queue.advance(millis(model.now));
                }
            }
            let ready = model.entries.values().filter(|e| e.due.is_none()).count();
            prop_assert_eq!(queue.len(), ready);
            prop_assert_eq!(queue.len() + queue.waiting(), model.entries.len());
            prop_assert_eq!(queue.running(millis(model.now)).count, flying.len());
        }
        // Nothing is lost: everything that is queued comes out once its time has come.
        model.now += 1000;
        for key in flying {
            queue.done(millis(model.now), &key);
            model.flying.remove(&key);
        }
        while let Some(popped) = queue.pop(millis(model.now)) {
            prop_assert_eq!(Some((popped.key, popped.priority)), model.pop(None));
        }
        prop_assert!(model.entries.is_empty());
    }

    #[test]
    fn a_ready_key_waits_for_a_bounded_number_of_dispatches(
        low in 1_usize..20,
        every in 2_u32..10,
    ) {
        let ageing = Ageing { starvation_after: millis(100), every };
        let config = Config { ageing: Some(ageing), ..Config::default() };
        let mut queue = Queue::new(config);
        for key in 0..low {
            queue.push(millis(0), key, Options::at(-4));
        }
        let mut left = low;
        // More urgent work arrives without end, and each dispatch takes a millisecond.
        for step in 0..(100 + low as u64 * u64::from(every) + u64::from(every)) {
            let now = millis(step);
            let urgent = 1000 + usize::try_from(step).unwrap();
            queue.push(now, urgent, Options::at(100));
            let popped = queue.pop(now).unwrap();
            queue.done(now, &popped.key);
            if popped.key < low {
                prop_assert!(step > 100, "too early");
                prop_assert_eq!(popped.key, low - left, "not the oldest");
                left -= 1;
            }
        }
        prop_assert_eq!(left, 0, "starved");
    }
}

#[test]
fn ready_keys_leave_in_strict_class_order_and_in_order_of_arrival() {
    let mut queue = Queue::new(strict());
    let priorities = [-10_i64, -5, 0, 5, 10];
    for n in 0..1000_u32 {
        for priority in priorities {
            let options = Options::at(priority);
            let options = match n % 3 {
                0 => options,
                1 => options.after(Duration::ZERO),
                _ => options.after(millis(1000)),
            };
            queue.push(millis(0), (priority, n), options);
        }
    }
    assert_eq!((queue.len(), queue.waiting()), (3335, 1665));
    queue.push(millis(1000), (99, 0), Options::at(99));
    assert_eq!(queue.pop(millis(1000)).unwrap().key, (99, 0));
    for priority in priorities.into_iter().rev() {
        let at_once = (0..1000).filter(|n| n % 3 != 2);
        for n in at_once.chain((0..1000).filter(|n| n % 3 == 2)) {
            assert_eq!(queue.pop(millis(1000)).unwrap().key, (priority, n));
        }
    }
    assert_eq!(queue.pop(millis(1000)), None);
}

#[test]
fn with_strict_priority_ageing_does_nothing() {
    let mut queue = Queue::new(strict());
    queue.push(millis(0), 1, Options::at(-4));
    for step in 0..100 {
        queue.push(Duration::from_hours(step), 2, Options::at(100));
        let popped = queue.pop(Duration::from_hours(step)).unwrap();
        assert_eq!(popped.key, 2);
        queue.done(Duration::from_hours(step), &popped.key);
    }
}

#[test]
fn a_delay_beyond_all_time_is_no_error() {
    let mut queue = Queue::new(strict());
    queue.push(millis(1), "a", Options::at(0).after(Duration::MAX));
    assert_eq!(queue.pop(Duration::from_hours(1 << 20)), None);
    assert_eq!(queue.waiting(), 1);
}

#[test]
fn a_failed_key_keeps_its_count_until_it_is_forgotten() {
    let mut queue = Queue::new(strict());
    for failures in 1..=3 {
        queue.push(millis(0), "a", Options::at(0).rate_limited());
        assert_eq!(queue.failures(&"a"), failures);
    }
    assert_eq!(queue.next_ready_at(), Some(millis(5)));
    queue.forget(&"a");
    assert_eq!((queue.failures(&"a"), queue.waiting()), (0, 1));
}
