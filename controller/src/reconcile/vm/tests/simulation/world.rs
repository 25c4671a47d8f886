//! What exists whether the controller runs or not: the API server, its time, and the record of a schedule.
//!
//! Invariant: objects and nodes are changed here alone, which wakes all that look at them; nothing
//! depends on real time.
//! Failure: what must never be is a finding; the schedule goes on, and fails in the end.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use serde_json::Value;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};

use super::nodes::Nodes;
use super::plan::{Fault, Kind, Plan};
use super::signal::{Changes, Signal};
use crate::reconcile::vm::tests::api::{Server, State};
use crate::reconcile::vm::tests::bench::START;

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) server: Server,
    nodes: Mutex<Nodes>,
    /// Ahead of the server's clock by that many seconds: the controller's.
    pub(super) skew: AtomicI64,
    /// Writes of the controller.
    pub(super) writes: AtomicUsize,
    started: Instant,
    changed: Signal,
    calm: Signal,
    trace: Mutex<Vec<String>>,
    findings: Mutex<Vec<String>>,
}

impl World {
    pub(super) fn new(plan: Plan) -> Arc<Self> {
        let started = Instant::now();
        let clock = move || time(seconds_since(started));
        let mut state = State::default();
        state.log = Some(Vec::new());
        state.clock = Some(Arc::new(clock));
        Arc::new(Self {
            plan,
            server: Arc::new(Mutex::new(state)),
            nodes: Mutex::default(),
            skew: AtomicI64::new(0),
            writes: AtomicUsize::new(0),
            started,
            changed: Signal::default(),
            calm: Signal::default(),
            trace: Mutex::default(),
            findings: Mutex::default(),
        })
    }

    /// The time of the server.
    pub(super) fn time(&self) -> String {
        self.time_in(0)
    }

    /// The time of the server in so many seconds.
    pub(super) fn time_in(&self, seconds: i64) -> String {
        time(seconds_since(self.started) + seconds)
    }

    /// The time of the controller.
    pub(super) fn seconds_of_controller(&self) -> i64 {
        seconds_since(self.started) + self.skew.load(Ordering::Relaxed)
    }

    /// Whether this may still go wrong.
    pub(super) fn has(&self, fault: Fault) -> bool {
        !self.calm.was_sent() && self.plan.faults.contains(&fault)
    }

    /// Whether objects of this kind take part.
    pub(super) fn includes(&self, kind: Kind) -> bool {
        self.plan.kinds.contains(&kind)
    }

    /// From now on nothing goes wrong.
    pub(super) fn calm_down(&self) {
        if self.calm.was_sent() {
            return;
        }
        self.note("nothing goes wrong any more");
        self.skew.store(0, Ordering::Relaxed);
        self.calm.send();
        self.changed.send();
    }

    /// Sleeps, at most until nothing goes wrong any more.
    pub(super) async fn sleep_while_faulty(&self, length: Duration) {
        tokio::select! {
            biased;
            () = self.calm.sent() => {}
            () = sleep(length) => {}
        }
    }

    /// Wakes its owner when something has changed since its last look.
    pub(super) fn changes(&self) -> Changes {
        self.changed.changes()
    }

    /// What depends on nothing but the parts of the world themselves has changed.
    pub(super) fn wake(&self) {
        self.changed.send();
    }

    /// Works on the objects.
    pub(super) fn on_server<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.server.lock().unwrap();
        let length = |state: &State| state.log.as_ref().map_or(0, Vec::len);
        let before = length(&state);
        let result = work(&mut state);
        let has_grown = length(&state) > before;
        drop(state);
        if has_grown {
            self.changed.send();
        }
        result
    }

    /// Works on the nodes.
    pub(super) fn on_nodes<T>(&self, work: impl FnOnce(&mut Nodes) -> T) -> T {
        let result = work(&mut self.nodes.lock().unwrap());
        self.changed.send();
        result
    }

    pub(super) fn look_at_nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap()
    }

    pub(super) fn get(&self, collection: &str, name: &str) -> Option<Value> {
        let place = (collection.to_owned(), name.to_owned());
        self.on_server(|state| state.objects.get(&place).cloned())
    }

    /// The object, if it is still this one.
    pub(super) fn same(&self, collection: &str, object: &Value) -> Option<Value> {
        let found = self.get(collection, name(object));
        found.filter(|found| uid(found) == uid(object))
    }

    pub(super) fn all(&self, collection: &str) -> Vec<Value> {
        self.on_server(|state| {
            let all = state.objects.iter();
            let found = all.filter(|((place, _), _)| place == collection);
            found.map(|(_, object)| object.clone()).collect()
        })
    }

    /// Merges a change into an object, if it is still this one.
    pub(super) fn edit(&self, collection: &str, object: &Value, change: &Value) {
        let place = (collection.to_owned(), name(object).to_owned());
        self.on_server(|state| {
            let old = state.objects.get(&place).cloned();
            if let Some(old) = old.filter(|old| uid(old) == uid(object)) {
                let mut new = old.clone();
                json_patch::merge(&mut new, change);
                state.store(&place, &old, new);
            }
        });
    }

    /// A line of the trace.
    pub(super) fn note(&self, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
        self.trace.lock().unwrap().push(format!("{at:9.3} {text}"));
    }

    /// Something that must never be.
    pub(super) fn finding(&self, text: &str) {
        self.note(&format!("FINDING {text}"));
        let mut findings = self.findings.lock().unwrap();
        if findings.len() < 10 {
            findings.push(text.to_owned());
        }
    }

    /// The end of a task, which is a finding if it is a panic.
    pub(super) fn ended(&self, what: &str, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            self.finding(&format!("{what}: {error}"));
        }
    }

    pub(super) fn findings(&self) -> Vec<String> {
        self.findings.lock().unwrap().clone()
    }

    /// All lines of the trace.
    pub(super) fn trace(&self) -> Vec<String> {
        self.trace.lock().unwrap().clone()
    }
}

fn seconds_since(started: Instant) -> i64 {
    START + i64::try_from(started.elapsed().as_secs()).unwrap()
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap().to_string()
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

pub(super) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The condition of that type, or null.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    static NONE: Value = Value::Null;
    let all = object["status"]["conditions"].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|one| one["type"] == kind).unwrap_or(&NONE)
}

/// Between two numbers of milliseconds; short ones are as likely as long ones.
pub(super) fn some_time(random: &mut Rng, from: u64, to: u64) -> Duration {
    let mut length = from.max(1);
    while length < to && random.bool() {
        length *= 4;
    }
    Duration::from_millis(random.u64(from..=length.min(to).max(from)))
}
