//! Reports to pods how far the pulls of their images are: events.
//!
//! Invariant: one event of a pull is in creation at most, and few exist for each pull; a pull that
//! moved on meanwhile gets the event of its newest point only.
//! Failure: an event that cannot be created is logged and given up; the next point gets another.

use std::collections::HashMap;
use std::sync::Arc;

use nodeapi::v1::{Pull, PullEvent};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::daemon::Event;
use crate::event::{self, About, Severity};
use crate::metrics::Metrics;
use steps::{Passed, Point};

mod steps;

/// Events that are created at the same time; more wait.
const AT_ONCE: usize = 4;
/// Pulls that are followed; the daemon lists fewer.
const MOST: usize = 2000;

/// One pull of one pod.
struct Entry {
    pull: Pull,
    passed: Passed,
    connection: u64,
    busy: bool,
}

/// What became of an event.
struct Done {
    id: String,
    point: Point,
    created: Result<(), String>,
}

/// The loop's state.
pub(crate) struct Reporter {
    client: kube::Client,
    node: String,
    entries: HashMap<String, Entry>,
    connection: u64,
    under_way: JoinSet<Done>,
    metrics: Arc<Metrics>,
}

impl Reporter {
    pub(crate) fn new(client: kube::Client, node: String, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            node,
            entries: HashMap::new(),
            connection: 0,
            under_way: JoinSet::new(),
            metrics,
        }
    }

    /// Works until `stop`.
    pub(crate) async fn run(
        mut self,
        mut daemon: Receiver<Event<PullEvent>>,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = daemon.recv() => match event {
                    Some(event) => self.daemon(event),
                    None => return,
                },
                Some(done) = self.under_way.join_next() => {
                    if let Ok(done) = done {
                        self.done(done);
                    }
                }
            }
            self.step();
        }
    }

    fn daemon(&mut self, event: Event<PullEvent>) {
        match event {
            Event::Connected(_) => self.connection += 1,
            Event::Item(PullEvent {
                pull: Some(pull),
                gone: false,
                ..
            }) => self.pull(pull),
            Event::Item(PullEvent {
                pull: Some(pull), ..
            }) => {
                self.entries.remove(&pull.id);
            }
            Event::Synced => {
                let connection = self.connection;
                self.entries
                    .retain(|_, entry| entry.connection == connection);
            }
            Event::Item(_) | Event::Lost => {}
        }
    }

    fn pull(&mut self, pull: Pull) {
        let connection = self.connection;
        if let Some(entry) = self.entries.get_mut(&pull.id) {
            (entry.pull, entry.connection) = (pull, connection);
        } else if self.entries.len() < MOST {
            let entry = Entry {
                pull,
                passed: Passed::default(),
                connection,
                busy: false,
            };
            self.entries.insert(entry.pull.id.clone(), entry);
        }
    }

    fn done(&mut self, done: Done) {
        self.metrics.wrote("event", done.created.is_ok());
        let entry = self.entries.get_mut(&done.id);
        if let Err(error) = done.created {
            let pod = entry.as_ref().map(|entry| entry.pull.pod_uid.as_str());
            tracing::warn!(pod, error, "progress of a pull not reported");
        }
        if let Some(entry) = entry {
            entry.busy = false;
            entry.passed.done(done.point);
        }
    }

    /// Creates the events that are due.
    fn step(&mut self) {
        for (id, entry) in &mut self.entries {
            if self.under_way.len() >= AT_ONCE {
                return;
            }
            let Some(text) = entry.passed.due(&entry.pull).filter(|_| !entry.busy) else {
                continue;
            };
            entry.busy = true;
            let client = self.client.clone();
            let node = self.node.clone();
            let id = id.clone();
            let pull = entry.pull.clone();
            self.under_way.spawn(async move {
                let about = about(&pull);
                let once = event::report_once(client, &node, &about, &text.key, &text.note);
                Done {
                    id,
                    point: text.point,
                    created: once.await,
                }
            });
        }
    }
}

/// With the reason that kubelet uses when a pull starts.
fn about(pull: &Pull) -> About<'_> {
    About {
        namespace: &pull.pod_namespace,
        object: event::pod(&pull.pod_namespace, &pull.pod_name, &pull.pod_uid),
        action: "PullImage",
        reason: "Pulling",
        severity: Severity::Normal,
    }
}

#[cfg(test)]
mod tests;
