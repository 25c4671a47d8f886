//! The loop that keeps pods up to date with their machines.
//!
//! Invariant: one write per pod is in progress at most, and one in the shortest time allowed,
//! unless power or pause changed or the guest got its first address; chatter that changes no fact is
//! silent.
//! Failure: none of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crds::guest_facts::GuestFacts;
use jiff::Timestamp;
use nodeapi::v1::{Machine, MachineEvent};
use service::backoff::Backoff;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::machine::facts;
use super::pod::{Identity, Published, Wrote, publish};
use crate::daemon::Event;
use crate::event;
use crate::metrics::Metrics;

/// Writes at the same time; more wait for the next look.
const AT_ONCE: usize = 16;
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Machines that are followed; more than any node has.
const MOST: usize = 10_000;

/// One machine and its pod.
struct Entry {
    pod: Identity,
    container: String,
    facts: GuestFacts,
    /// What the guest does not get, and what of it is an event already.
    unsupported: Vec<String>,
    reported: Vec<String>,
    connection: u64,
    published: Option<Published>,
    written_at: Option<Instant>,
    /// The pod no longer exists; nothing is written until the daemon reports it again.
    vanished: bool,
    busy: bool,
    backoff: Backoff,
}

/// What became of one entry: the pod, and the events where there were any to create.
struct Done {
    uid: String,
    wrote: Wrote,
    reported: Option<Result<Vec<String>, String>>,
}

/// The loop's state.
pub(crate) struct Publisher {
    client: kube::Client,
    node: String,
    entries: HashMap<String, Entry>,
    connection: u64,
    under_way: JoinSet<Done>,
    shortest: Duration,
    metrics: Arc<Metrics>,
    machines: Arc<AtomicU32>,
}

impl Publisher {
    /// `machines` is kept at the number of machines.
    pub(crate) fn new(
        client: kube::Client,
        node: String,
        shortest: Duration,
        metrics: Arc<Metrics>,
        machines: Arc<AtomicU32>,
    ) -> Self {
        Self {
            client,
            node,
            entries: HashMap::new(),
            connection: 0,
            under_way: JoinSet::new(),
            shortest,
            metrics,
            machines,
        }
    }

    /// Works until `stop`.
    pub(crate) async fn run(
        mut self,
        mut daemon: Receiver<Event<MachineEvent>>,
        stop: CancellationToken,
    ) {
        let mut wake = Instant::now();
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
                () = tokio::time::sleep_until(wake) => {}
            }
            wake = self.step();
        }
    }

    fn daemon(&mut self, event: Event<MachineEvent>) {
        match event {
            Event::Connected(_) => self.connection += 1,
            Event::Item(MachineEvent {
                machine: Some(machine),
                gone,
                ..
            }) => self.machine(&machine, gone),
            Event::Synced => {
                let connection = self.connection;
                self.entries
                    .retain(|_, entry| entry.busy || entry.connection == connection);
            }
            // What was known stays true until the daemon reports otherwise.
            Event::Item(_) | Event::Lost => {}
        }
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.machines.store(count, Ordering::Relaxed);
    }

    fn machine(&mut self, machine: &Machine, gone: bool) {
        let uid = &machine.pod_uid;
        if gone {
            let of = |entry: &Entry| {
                machine.container_id.is_empty() || entry.container == machine.container_id
            };
            if self.entries.get(uid).is_some_and(of) {
                self.entries.remove(uid);
            }
            return;
        }
        let known = self.entries.contains_key(uid);
        if uid.is_empty() || (!known && self.entries.len() >= MOST) {
            return;
        }
        let entry = self.entries.entry(uid.clone()).or_insert_with(|| Entry {
            pod: Identity {
                uid: uid.clone(),
                namespace: machine.pod_namespace.clone(),
                name: machine.pod_name.clone(),
            },
            container: String::new(),
            facts: GuestFacts::default(),
            unsupported: Vec::new(),
            reported: Vec::new(),
            connection: 0,
            published: None,
            written_at: None,
            vanished: false,
            busy: false,
            backoff: Backoff::default(),
        });
        entry.container.clone_from(&machine.container_id);
        entry.connection = self.connection;
        let facts = facts(machine);
        if facts != entry.facts || machine.unsupported != entry.unsupported {
            entry.facts = facts;
            entry.unsupported.clone_from(&machine.unsupported);
            entry.vanished = false;
        }
    }

    fn done(&mut self, done: Done) {
        let Done {
            uid,
            wrote,
            reported,
        } = done;
        let now = Instant::now();
        let Some(entry) = self.entries.get_mut(&uid) else {
            return;
        };
        entry.busy = false;
        let failed = match reported {
            Some(Ok(texts)) => {
                entry.reported = texts;
                None
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        match wrote {
            Wrote::Written(published) => {
                self.metrics.wrote("pod", true);
                entry.backoff.reset();
                entry.written_at = Some(now);
                entry.published = Some(published);
            }
            Wrote::Unchanged(published) => {
                entry.backoff.reset();
                entry.published = Some(published);
            }
            Wrote::Vanished => entry.vanished = true,
            Wrote::Failed(error) => {
                self.metrics.wrote("pod", false);
                let wait = entry.backoff.failed(now);
                // What the pod reports may have changed all the same.
                entry.published = None;
                tracing::warn!(pod = uid, error, again_in = ?wait, "guest facts not written");
            }
        }
        if let Some(error) = failed {
            let wait = entry.backoff.failed(now);
            tracing::warn!(pod = uid, error, again_in = ?wait, "pod events not written");
        }
    }

    /// Starts the tasks that can be started; returns the time of the next step.
    fn step(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = now + LONGEST_SLEEP;
        for (uid, entry) in &mut self.entries {
            match entry.due(now, self.shortest) {
                None => {}
                Some(at) if at > now => wake = wake.min(at),
                Some(_) if self.under_way.len() >= AT_ONCE => {}
                Some(_) => {
                    entry.busy = true;
                    let uid = uid.clone();
                    let pod = entry.pod.clone();
                    let facts = entry.facts.clone();
                    let client = self.client.clone();
                    let published = entry.published.clone();
                    let node = self.node.clone();
                    let texts = entry.unreported();
                    self.under_way.spawn(async move {
                        let now = Timestamp::now();
                        let wrote =
                            publish(client.clone(), &node, &pod, &facts, published, now).await;
                        let reported = match (&wrote, texts) {
                            (Wrote::Written(_) | Wrote::Unchanged(_), Some(texts)) => {
                                let about = pod.not_given();
                                let done = event::report(client, &node, &about, &texts).await;
                                Some(done.map(|()| texts))
                            }
                            _ => None,
                        };
                        Done {
                            uid,
                            wrote,
                            reported,
                        }
                    });
                }
            }
        }
        wake
    }
}

impl Entry {
    /// What is to become events of the pod.
    fn unreported(&self) -> Option<Vec<String>> {
        (self.unsupported != self.reported).then(|| self.unsupported.clone())
    }

    /// When the pod should be written; none when it states everything, or cannot be written now.
    fn due(&self, now: Instant, shortest: Duration) -> Option<Instant> {
        if self.busy || self.vanished {
            return None;
        }
        let published = self
            .published
            .as_ref()
            .and_then(|published| published.facts.as_ref());
        let has_news = self.unreported().is_some();
        if published == Some(&self.facts) && !has_news {
            return None;
        }
        if let Some(until) = self.backoff.not_before(now) {
            return Some(until);
        }
        let is_reached = |facts: &GuestFacts| facts.usable_addresses().next().is_some();
        let urgent = published.is_none_or(|published| {
            published.power != self.facts.power
                || published.pause_reason != self.facts.pause_reason
                || !is_reached(published) && is_reached(&self.facts)
        });
        match self.written_at {
            Some(at) if !urgent && !has_news => Some(at + shortest),
            _ => Some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use crds::guest_facts::{GuestInterface, Power};

    use super::*;

    const SHORTEST: Duration = Duration::from_secs(5);

    fn entry(now: Instant) -> Entry {
        let facts = GuestFacts {
            power: Power::On,
            ..GuestFacts::default()
        };
        Entry {
            pod: Identity {
                uid: "u".to_owned(),
                namespace: "ns".to_owned(),
                name: "vm".to_owned(),
            },
            container: "c".to_owned(),
            published: Some(Published {
                facts: Some(facts.clone()),
                ..Published::default()
            }),
            facts,
            unsupported: Vec::new(),
            reported: Vec::new(),
            connection: 1,
            written_at: Some(now),
            vanished: false,
            busy: false,
            backoff: Backoff::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_written_at_once_for_power_and_after_a_while_for_the_rest() {
        let now = Instant::now();
        let mut entry = entry(now);
        assert_eq!(entry.due(now, SHORTEST), None, "nothing changed");
        entry.unsupported = vec!["no mount".to_owned()];
        assert_eq!(entry.due(now, SHORTEST), Some(now), "an event is due");
        entry.reported.clone_from(&entry.unsupported);
        assert_eq!(entry.due(now, SHORTEST), None, "it was reported");
        entry.facts.host_name = "vm-1".to_owned();
        assert_eq!(entry.due(now, SHORTEST), Some(now + SHORTEST));
        let address = |ip: &str| GuestInterface {
            addresses: vec![ip.to_owned()],
            ..GuestInterface::default()
        };
        entry.facts.interfaces = vec![address("fe80::1/64")];
        assert_eq!(entry.due(now, SHORTEST), Some(now + SHORTEST), "no use");
        entry.facts.interfaces.push(address("10.0.0.7/24"));
        assert_eq!(entry.due(now, SHORTEST), Some(now), "the first address");
        entry.published.as_mut().unwrap().facts = Some(entry.facts.clone());
        entry.facts.interfaces.push(address("10.0.0.8/24"));
        assert_eq!(entry.due(now, SHORTEST), Some(now + SHORTEST), "another");
        entry.facts.power = Power::Paused;
        assert_eq!(entry.due(now, SHORTEST), Some(now));
        entry.published = None;
        assert_eq!(
            entry.due(now, SHORTEST),
            Some(now),
            "not known what it says"
        );
        entry.backoff.failed(now);
        assert!(entry.due(now, SHORTEST) > Some(now));
        entry.busy = true;
        assert_eq!(entry.due(now, SHORTEST), None);
        entry.busy = false;
        entry.vanished = true;
        assert_eq!(entry.due(now, SHORTEST), None);
    }
}
