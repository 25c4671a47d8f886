//! The priority queue.
//!
//! A key is in one of these places; beside its place it may be in flight, and it has a count of
//! failures:
//!
//! ```text
//!            push, delay                 due, or push without delay
//!   Idle ───────────────────► Waiting ───────────────────────────────┐
//!    │  push                                                         ▼
//!    └───────────────────────────────────────────────────────────► Linked
//!   Linked ── pop ──► Idle, in flight                (in its class's list)
//!   Linked, in flight ── pop meets it at the head ──► Detached ── done ──► Front ── pop ──► Idle, in flight
//! ```
//!
//! Ready keys form one list per priority, threaded through the slots; a key that is in flight keeps
//! its place in the list until it reaches the head. It is then set aside, and once it returns it
//! precedes the list. So nothing is searched: `push`, `pop` and `done` cost a hash look-up, a
//! look into an ordered map of the priorities in use, and, for delayed keys, one into an ordered
//! set of due times.
//!
//! A quiet push (a change that the pass itself made, say) does not cut a back-off short: it is
//! dropped while the key waits after a failure, and held back while the key is in flight until the
//! verdict is known.
//!
//! Invariant: a key has one slot; a slot is released when the key is neither queued nor in flight
//! and has no failures.
//! Failure: none.

mod classes;
mod links;
mod lookup;
mod slots;

use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::Duration;

use self::classes::Classes;
use self::links::{List, NIL};
use self::slots::{Place, Slots};
use crate::{Class, Config, Metrics, Options};

/// A key that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popped<K> {
    /// The key. It is in flight until [`Queue::done`].
    pub key: K,
    /// Its priority when it was handed out.
    pub priority: i64,
}

/// When a waiting key becomes ready; ordered by time, then as ready keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: u64,
    negated_priority: i128,
    sequence: u64,
    slot: u32,
}

/// A key in flight, and since when.
#[derive(Clone, Copy, Debug)]
struct Flight {
    slot: u32,
    since: u64,
}

/// A priority queue of keys with delays, back-off and ageing; at most one worker per key.
///
/// Times are durations since any fixed moment, the same for all calls, and must not go back.
#[derive(Debug)]
pub struct Queue<K, M = ()> {
    slots: Slots<K>,
    classes: Classes,
    /// Keys that can be dispatched, the one that could first at the head.
    ages: List,
    waiting: BTreeSet<Due>,
    flights: Vec<Flight>,
    ready: usize,
    next_sequence: u64,
    since_aged: u32,
    shut_down: bool,
    config: Config,
    metrics: M,
}

impl<K: Hash + Eq + Clone> Queue<K> {
    /// An empty queue without metrics.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self::with_metrics(config, ())
    }
}

impl<K: Hash + Eq + Clone, M: Metrics> Queue<K, M> {
    /// An empty queue.
    #[must_use]
    pub fn with_metrics(mut config: Config, metrics: M) -> Self {
        config.levels.sort_unstable();
        Self {
            slots: Slots::default(),
            classes: Classes::default(),
            ages: List::default(),
            waiting: BTreeSet::new(),
            flights: Vec::new(),
            ready: 0,
            next_sequence: 0,
            since_aged: 0,
            shut_down: false,
            config,
            metrics,
        }
    }

    /// Queues a key, or merges with what is queued: the earlier time and the higher priority win.
    pub fn push(&mut self, now: Duration, key: K, options: Options) {
        self.push_with(|| now, key, options);
    }

    /// The same; the clock is read only where time matters.
    pub fn push_with(&mut self, now: impl FnOnce() -> Duration, key: K, options: Options) {
        if self.shut_down {
            return;
        }
        let slot = self.slots.intern(key);
        if options.quiet && self.is_deferred(slot, options.priority) {
            return;
        }
        let delay = self.delay(slot, options);
        if !delay.is_zero() {
            self.metrics.retried();
        }
        let known = &self.slots[slot];
        if known.place.is_ready() && options.priority <= known.priority {
            return;
        }
        self.enqueue(now(), slot, options.priority, delay);
    }

    /// Queues a slot, or merges with how it is queued.
    fn enqueue(&mut self, now: Duration, slot: u32, priority: i64, delay: Duration) {
        self.promote(nanos(now));
        // A key that was waiting may just have become ready.
        match self.slots[slot].place {
            Place::Idle => {
                self.slots[slot].priority = priority;
                self.slots[slot].sequence = self.sequence();
                if delay.is_zero() {
                    self.make_ready(slot, nanos(now));
                } else {
                    self.wait(slot, nanos(now.saturating_add(delay)));
                }
            }
            Place::Waiting => {
                let due = self.due(slot);
                self.waiting.remove(&due);
                if priority > self.slots[slot].priority {
                    self.slots[slot].priority = priority;
                    self.slots[slot].sequence = self.sequence();
                }
                if delay.is_zero() {
                    self.make_ready(slot, nanos(now));
                } else {
                    self.wait(slot, due.at.min(nanos(now.saturating_add(delay))));
                }
            }
            Place::Linked | Place::Detached | Place::Front => {
                if priority > self.slots[slot].priority {
                    self.raise_ready(slot, priority);
                }
            }
        }
    }

    /// Hands out the next key; `None` when none can be dispatched at `now`, or after
    /// [`Queue::shut_down`].
    pub fn pop(&mut self, now: Duration) -> Option<Popped<K>> {
        self.pop_below(now, None)
    }

    /// The same among the keys with a priority below `limit`.
    pub fn pop_below(&mut self, now: Duration, limit: Option<i64>) -> Option<Popped<K>> {
        if self.shut_down {
            return None;
        }
        let now = nanos(now);
        self.promote(now);
        let starving = self.starving(now, limit);
        let slot = match starving {
            Some(slot) => {
                self.since_aged = 0;
                self.unlink(slot);
                slot
            }
            None => {
                let slot = self.classes.take_first(&mut self.slots, limit)?;
                self.since_aged = self.since_aged.saturating_add(1);
                slot
            }
        };
        // Slots in use have keys.
        let key = self.slots.key(slot)?;
        self.ages.unlink(&mut self.slots.ages(), slot);
        self.ready -= 1;
        self.depth(self.slots[slot].priority, -1);
        let taken = &mut self.slots[slot];
        taken.place = Place::Idle;
        taken.flight = slots::index(self.flights.len());
        let waited = Duration::from_nanos(now.saturating_sub(taken.time));
        let priority = taken.priority;
        self.metrics.queued(waited);
        let class = self.class(priority);
        self.metrics.dispatched(class, waited, starving.is_some());
        self.flights.push(Flight { slot, since: now });
        Some(Popped { key, priority })
    }

    /// Makes ready what is due at `now`. [`Queue::pop`] and [`Queue::push`] do so themselves.
    pub fn advance(&mut self, now: Duration) {
        self.promote(nanos(now));
    }

    /// Ends a key's flight. What was pushed meanwhile can be dispatched from now on. Unknown keys
    /// are ignored.
    pub fn done(&mut self, now: Duration, key: &K) {
        let Some(slot) = self.slots.find(key) else {
            return;
        };
        let flight = self.slots[slot].flight;
        if flight == NIL {
            return;
        }
        let ended = self.flights.swap_remove(flight as usize);
        if let Some(moved) = self.flights.get(flight as usize) {
            self.slots[moved.slot].flight = flight;
        }
        self.slots[slot].flight = NIL;
        self.metrics
            .worked(Duration::from_nanos(nanos(now).saturating_sub(ended.since)));
        let quiet = self.slots[slot].quiet.take();
        match self.slots[slot].place {
            Place::Detached => {
                self.classes.put_before(&mut self.slots, slot);
                self.ages.push_back(&mut self.slots.ages(), slot);
            }
            Place::Linked => self.ages.push_back(&mut self.slots.ages(), slot),
            Place::Idle | Place::Waiting | Place::Front => {}
        }
        match quiet.filter(|_| !self.shut_down && !self.slots[slot].is_backing_off()) {
            Some(priority) => self.enqueue(now, slot, priority, Duration::ZERO),
            None => self.slots.release_if_unused(slot),
        }
    }

    /// Resets the key's back-off; it stays queued if it is.
    pub fn forget(&mut self, key: &K) {
        if let Some(slot) = self.slots.find(key) {
            self.slots[slot].failures = 0;
            self.slots.release_if_unused(slot);
        }
    }

    /// From now on pushes are dropped and nothing is handed out; keys in flight may still come
    /// back.
    pub fn shut_down(&mut self) {
        self.shut_down = true;
    }

    /// Whether [`Queue::shut_down`] was called.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    /// Where the numbers go.
    pub fn metrics(&mut self) -> &mut M {
        &mut self.metrics
    }

    /// Whether a quiet push has no effect yet: the key waits after a failure, or its flight, which
    /// may fail, decides.
    fn is_deferred(&mut self, slot: u32, priority: i64) -> bool {
        let known = &mut self.slots[slot];
        let is_undecided = known.flight != NIL && !known.place.is_ready();
        if is_undecided {
            known.quiet = known.quiet.max(Some(priority));
        }
        is_undecided || known.is_backing_off()
    }

    fn delay(&mut self, slot: u32, options: Options) -> Duration {
        let given = options.after;
        if !options.rate_limited {
            return given.unwrap_or_default();
        }
        let known = &mut self.slots[slot];
        let limited = self.config.limiter.delay(known.failures);
        known.failures = known.failures.saturating_add(1);
        given.map_or(limited, |given| given.min(limited))
    }

    fn sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    /// Moves what is due to the ready keys, in the order of becoming so.
    fn promote(&mut self, now: u64) {
        while let Some(due) = self.waiting.first().copied()
            && due.at <= now
        {
            self.waiting.pop_first();
            self.make_ready(due.slot, now);
        }
    }

    /// Appends a key that is in no list to its class.
    fn make_ready(&mut self, slot: u32, now: u64) {
        self.slots[slot].time = now;
        self.link(slot);
        if self.slots[slot].flight == NIL {
            self.ages.push_back(&mut self.slots.ages(), slot);
        }
        self.ready += 1;
        self.metrics.added();
        self.depth(self.slots[slot].priority, 1);
    }

    fn wait(&mut self, slot: u32, at: u64) {
        self.slots[slot].place = Place::Waiting;
        self.slots[slot].time = at;
        let due = self.due(slot);
        self.waiting.insert(due);
    }

    fn due(&self, slot: u32) -> Due {
        let waiting = &self.slots[slot];
        Due {
            at: waiting.time,
            negated_priority: -i128::from(waiting.priority),
            sequence: waiting.sequence,
            slot,
        }
    }

    fn raise_ready(&mut self, slot: u32, priority: i64) {
        self.unlink(slot);
        let before = std::mem::replace(&mut self.slots[slot].priority, priority);
        self.link(slot);
        self.depth(before, -1);
        self.depth(priority, 1);
    }

    fn link(&mut self, slot: u32) {
        self.slots[slot].sequence = self.sequence();
        self.classes.append(&mut self.slots, slot);
    }

    fn unlink(&mut self, slot: u32) {
        self.classes.remove(&mut self.slots, slot);
    }

    /// A key that has been ready for too long, when it is time for one.
    fn starving(&self, now: u64, limit: Option<i64>) -> Option<u32> {
        let ageing = self.config.ageing?;
        if self.since_aged.saturating_add(1) < ageing.every {
            return None;
        }
        let oldest = self.ages.head()?;
        let known = &self.slots[oldest];
        let old = now.saturating_sub(known.time) > nanos(ageing.starvation_after);
        let allowed = limit.is_none_or(|limit| known.priority < limit);
        (old && allowed).then_some(oldest)
    }

    fn depth(&mut self, priority: i64, change: i64) {
        let class = self.class(priority);
        self.metrics.depth(class, change);
    }

    fn class(&self, priority: i64) -> Class {
        match self.config.levels.binary_search(&priority) {
            Ok(_) => Class::Level(priority),
            Err(_) => Class::Custom,
        }
    }
}

/// 64 bits of nanoseconds are 584 years; what is beyond is that far away.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
