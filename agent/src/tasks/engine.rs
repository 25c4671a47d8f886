//! The event loop: each event causes one step of each task.
//!
//! Invariant: entries are touched by this loop alone; a list counts once it is complete.
//! Failure: none of its own; at a shutdown it waits a little for requests in progress.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crds::VirtualMachineTask;
use crds::guard::Guarded;
use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use kube::runtime::watcher;
use nodeapi::v1::{TaskEvent, TaskStatus};
use service::telemetry::one_line;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::decide::{Entry, Next, World, next};
use super::effects::{Done, Effects};
use super::object::{Object, Uid, is_final};
use super::report;
use super::turns::{Turns, behind};
use crate::daemon::{Daemon, Event};
use crate::health::Health;
use crate::metrics::Metrics;

/// Effects at the same time.
const AT_ONCE: usize = 16;
/// How long effects that are in progress may take when the agent ends.
const FAREWELL: Duration = Duration::from_secs(3);
/// Longest sleep, so that a wall clock that jumps has no lasting effect.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

type Sent = Guarded<VirtualMachineTask>;

/// Times that the loop keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Shortest time between writes of progress.
    pub(crate) progress: Duration,
    /// How long an ended task is kept.
    pub(crate) keep: Duration,
}

/// The loop's state.
pub(crate) struct Engine {
    entries: HashMap<Uid, Entry>,
    /// Objects of the list that is being read.
    listing: Option<HashSet<Uid>>,
    listed: bool,
    turns: Turns,
    /// Counts connections to the daemon.
    connection: u64,
    /// Kinds that the daemon offers.
    kinds: Vec<String>,
    /// Whether the daemon of this connection has listed all its tasks.
    synced: bool,
    effects: Effects,
    under_way: JoinSet<(Uid, Done)>,
    room: Arc<Semaphore>,
    limits: Limits,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Engine {
    pub(crate) fn new(
        client: kube::Client,
        daemon: Daemon,
        limits: Limits,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            entries: HashMap::new(),
            listing: None,
            listed: false,
            turns: Turns::default(),
            connection: 0,
            kinds: Vec::new(),
            synced: false,
            effects: Effects { client, daemon },
            under_way: JoinSet::new(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
            limits,
            metrics,
            health,
        }
    }

    /// Works until `stop`.
    pub(crate) async fn run(
        mut self,
        objects: impl Stream<Item = watcher::Result<watcher::Event<Sent>>> + Send,
        mut daemon: Receiver<Event<TaskEvent>>,
        stop: CancellationToken,
    ) {
        let mut objects = std::pin::pin!(objects);
        let mut complaining = false;
        let mut wake = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                event = objects.next() => match event {
                    Some(Ok(event)) => {
                        complaining = false;
                        self.object(event);
                    }
                    Some(Err(e)) => {
                        self.health.api(false);
                        if !complaining {
                            complaining = true;
                            tracing::warn!(error = one_line(&e), "task watch failed");
                        }
                    }
                    None => break,
                },
                event = daemon.recv() => match event {
                    Some(event) => self.daemon(event),
                    None => break,
                },
                Some(done) = self.under_way.join_next() => {
                    if let Ok((uid, done)) = done {
                        self.done(&uid, done);
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            wake = self.step();
        }
        let rest = async { while self.under_way.join_next().await.is_some() {} };
        // What does not end in time is done again after the next start.
        let _ = tokio::time::timeout(FAREWELL, rest).await;
    }

    fn object(&mut self, event: watcher::Event<Sent>) {
        self.health.api(true);
        match event {
            watcher::Event::Init => self.listing = Some(HashSet::new()),
            watcher::Event::InitApply(sent) | watcher::Event::Apply(sent) => {
                let Some(object) = Object::from_api(sent) else {
                    return;
                };
                let entry = self.entries.entry(object.uid.clone()).or_default();
                match &mut self.listing {
                    Some(listing) => drop(listing.insert(object.uid.clone())),
                    None => self.turns.notified(entry),
                }
                entry.object = Some(object);
            }
            watcher::Event::InitDone => {
                let there = self.listing.take().unwrap_or_default();
                for (uid, entry) in &mut self.entries {
                    // What failed while the API server was away need not wait any longer.
                    entry.backoff.reset();
                    if !there.contains(uid) {
                        entry.object = None;
                    }
                }
                self.turns.listed(&mut self.entries);
                self.listed = true;
                self.health.listed();
            }
            watcher::Event::Delete(sent) => {
                let gone = Object::from_api(sent);
                if let Some(entry) = gone.and_then(|gone| self.entries.get_mut(&gone.uid)) {
                    entry.object = None;
                }
            }
        }
    }

    fn daemon(&mut self, event: Event<TaskEvent>) {
        match event {
            Event::Connected(info) => {
                self.connection += 1;
                self.synced = false;
                self.kinds = info.task_kinds;
            }
            Event::Item(event) => {
                if let Some(task) = event.task {
                    self.reported(task);
                }
            }
            Event::Synced => {
                self.synced = true;
                for entry in self.entries.values_mut() {
                    if entry.connection != self.connection {
                        entry.reported = None;
                        entry.cancel_asked = false;
                        entry.connection = self.connection;
                        entry.backoff.reset();
                    }
                }
            }
            Event::Lost => self.synced = false,
        }
        self.health.daemon(self.synced);
    }

    fn reported(&mut self, task: TaskStatus) {
        if task.uid.is_empty() || task.uid.len() > 253 {
            return;
        }
        let entry = self.entries.entry(task.uid.clone()).or_default();
        let known = entry.reported.take();
        entry.reported = Some(match known {
            Some(known) if entry.connection == self.connection => report::advance(known, task),
            _ => {
                entry.cancel_asked = false;
                task
            }
        });
        entry.connection = self.connection;
    }

    fn done(&mut self, uid: &str, done: Done) {
        let now = Instant::now();
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        entry.busy = false;
        if let Done::Failed(error) = done {
            let wait = entry.backoff.failed(now);
            tracing::warn!(uid, error, again_in = ?wait, "task status not written");
            return;
        }
        entry.backoff.reset();
        match done {
            Done::Stands(status) => self.reported(status),
            Done::Cancelling(status) => {
                entry.cancel_asked = true;
                self.reported(status);
            }
            Done::Unknown => {
                entry.reported = None;
                entry.cancel_asked = false;
            }
            Done::Refused(sentence) => entry.refused = Some(sentence),
            Done::Recorded(status) => {
                self.metrics.wrote("task", true);
                entry.written_at = Some(now);
                if let Some(object) = &mut entry.object {
                    object.ours = true;
                    if is_final(&status) {
                        self.metrics.ended(&object.kind(), &status);
                        tracing::info!(
                            state = ?status.state,
                            kind = object.kind(),
                            task = format!("{}/{}", object.namespace, object.name),
                            result = status.message,
                            "task ended"
                        );
                    }
                }
                entry.written = Some(*status);
            }
            Done::Vanished => entry.object = None,
            Done::Failed(_) => {}
        }
    }

    /// Starts the tasks that can be started; returns the time of the next step.
    fn step(&mut self) -> Instant {
        let now = Instant::now();
        let world = World {
            listed: self.listed,
            daemon: self.synced.then_some(&*self.kinds),
            progress: self.limits.progress,
            keep: self.limits.keep,
            now,
            wall: Timestamp::now(),
        };
        let mut wake = now + LONGEST_SLEEP;
        let mut unknown = Vec::new();
        let behind = behind(&self.entries);
        for (uid, entry) in &mut self.entries {
            match next(uid, entry, &world) {
                Next::Idle => {}
                // The end of what precedes it leads here again.
                Next::Run(_) if behind.contains(uid) => {}
                Next::At(at) => wake = wake.min(at),
                Next::Drop => unknown.push(uid.clone()),
                effect => {
                    entry.busy = true;
                    let effects = self.effects.clone();
                    let room = Arc::clone(&self.room);
                    let uid = uid.clone();
                    let object = entry.object.clone();
                    self.under_way.spawn(async move {
                        // The semaphore is never closed.
                        let _permit = room.acquire_owned().await;
                        let done = effects.perform(&uid, object.as_ref(), effect).await;
                        (uid, done)
                    });
                }
            }
        }
        for uid in unknown {
            self.entries.remove(&uid);
        }
        let live = self.entries.values().filter_map(|entry| {
            let object = entry.object.as_ref()?;
            let status = entry.written.as_ref().unwrap_or(&object.status);
            (!is_final(status)).then(|| (object.kind(), status.state))
        });
        self.metrics.live(live);
        wake
    }
}
