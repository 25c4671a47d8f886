//! What is known of machines beyond their rows: whether they run, and what their guests say.
//!
//! Invariant: power follows libvirt's events, and is requested again after each connection. A guest
//! is requested facts every [`PERIOD`], and more often until it has an address; few guests at once,
//! and none holds another one up for longer than its own deadlines.
//! Failure: what cannot be had is absent, or as it was.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use libvirt::{Event, Hypervisor, Pause, Power, Versions};
use podspec::ContainerId;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use uuid::Uuid;

use super::facts::{self, Reply};
use crate::clock;
use crate::platform::Platform;
use crate::vm::{Container, Containers};

/// Time between two questions to a guest for facts.
const PERIOD: Duration = Duration::from_secs(30);

/// The same while a guest boots and has no address.
const LOOK: Duration = Duration::from_secs(5);

/// The same right after its start, or after its agent appeared: the address is about to come.
const FIRST: Duration = Duration::from_secs(1);

/// How long that is so.
const SOON: Duration = Duration::from_secs(30);

/// How long a guest counts as booting.
const BOOT: i64 = 180_000_000_000;

/// Guests that are queried at once: their agents may be silent.
const ABREAST: usize = 2;

/// Whether a guest's agent answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Agent {
    /// The guest was not queried yet.
    #[default]
    NoInfo,
    /// It does not answer.
    NotRunning,
    /// It answers.
    Connected,
}

/// What is known of a machine that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) power: Option<Power>,
    /// Whether its disk had the record of a merge that pauses the guest, when that was looked at.
    pub(super) for_merge: bool,
    /// Which disks failed, when QEMU has paused the guest for it.
    pub(super) failed_disks: String,
    pub(super) agent: Agent,
    pub(super) reply: Reply,
    pub(super) machine_type: String,
}

/// What is known of a machine, and when its guest was queried.
#[derive(Debug)]
struct Entry {
    known: Known,
    queried: Option<Instant>,
    /// When the machine was seen first, or its agent appeared.
    since: Instant,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            known: Known::default(),
            queried: None,
            since: Instant::now(),
        }
    }
}

impl Known {
    /// Time until the next question to a guest that boots, or does not any more.
    fn period(&self, is_soon: bool, boots: bool) -> Duration {
        match self.agent {
            Agent::Connected if self.reply.has_address() => PERIOD,
            _ if is_soon => FIRST,
            _ if boots => LOOK,
            _ => PERIOD,
        }
    }
}

/// The machines that run, and when their guests were queried.
#[derive(Debug)]
pub struct Machines<P: Platform> {
    pub(super) containers: Arc<Containers<P>>,
    hypervisor: Arc<P::Hypervisor>,
    known: Mutex<BTreeMap<ContainerId, Entry>>,
    versions: Mutex<Option<Versions>>,
    generation: watch::Sender<u64>,
}

impl<P: Platform> Machines<P> {
    /// Nothing is known yet; see [`Self::follow`].
    pub fn new(containers: Arc<Containers<P>>, hypervisor: Arc<P::Hypervisor>) -> Self {
        Self {
            containers,
            hypervisor,
            known: Mutex::default(),
            versions: Mutex::default(),
            generation: watch::Sender::new(0),
        }
    }

    /// Keeps all of it true, without end; `events` must be older than the connection.
    pub async fn follow(self: Arc<Self>, mut events: broadcast::Receiver<Event>) {
        let mut look = tokio::time::interval(FIRST);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut queries = tokio::task::JoinSet::new();
        if self.hypervisor.is_connected() {
            self.connected().await;
        }
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(Event::Connected) | Err(RecvError::Lagged(_)) => self.connected().await,
                    Ok(Event::Started(domain) | Event::Power(domain)) => self.refresh(domain).await,
                    Ok(Event::AgentConnected(domain)) => self.query_soon(domain),
                    Ok(Event::Stopped(..) | Event::Reset(_) | Event::Disconnected) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = look.tick() => {
                    if queries.is_empty() {
                        let this = Arc::clone(&self);
                        queries.spawn(async move { this.query_guests().await });
                    }
                }
                Some(_) = queries.join_next() => {}
            }
        }
    }

    /// What is known of a machine.
    pub(super) fn known(&self, id: &ContainerId) -> Known {
        let all = self.lock();
        let entry = all.get(id);
        entry.map(|entry| entry.known.clone()).unwrap_or_default()
    }

    /// The versions at the last connection.
    pub(super) fn versions(&self) -> Option<Versions> {
        let versions = self.versions.lock();
        versions.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes whenever something here does.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    async fn connected(&self) {
        if let Ok(versions) = self.hypervisor.versions().await {
            *self.versions.lock().unwrap_or_else(PoisonError::into_inner) = Some(versions);
        }
        for row in self.running() {
            self.refresh(row.domain()).await;
        }
    }

    fn row(&self, domain: Uuid) -> Option<Arc<Container>> {
        let all = self.containers.machines().into_iter();
        let mut running = all.filter(|row| row.phase.may_run());
        running.find(|row| row.domain() == domain)
    }

    /// The agent of a guest has just started.
    fn query_soon(&self, domain: Uuid) {
        if let Some(row) = self.row(domain) {
            let mut all = self.lock();
            let entry = all.entry(row.id.clone()).or_default();
            (entry.queried, entry.since) = (None, Instant::now());
        }
    }

    /// Queries libvirt whether a guest runs.
    async fn refresh(&self, domain: Uuid) {
        let Some(row) = self.row(domain) else {
            return;
        };
        let was_merging = self.containers.is_paused_for_merge(&row);
        if let Ok(Some(power)) = self.hypervisor.power(domain).await {
            let for_merge = was_merging || self.containers.is_paused_for_merge(&row);
            let failed_disks = match power {
                Power::Paused(Pause::IoError) => self.containers.failed_disks(domain).await,
                Power::Off | Power::On | Power::Paused(_) => String::new(),
            };
            self.change(&row.id, |known| {
                known.power = Some(power);
                known.for_merge = for_merge;
                known.failed_disks = failed_disks;
            });
        }
        if self.known(&row.id).machine_type.is_empty()
            && let Ok(Some(kind)) = self.hypervisor.machine_type(domain).await
        {
            let kind = kind.chars().filter(|c| !c.is_control()).take(64).collect();
            self.change(&row.id, |known| known.machine_type = kind);
        }
    }

    /// Queries the guests whose turn it is, and forgets those that do not run any more.
    async fn query_guests(self: &Arc<Self>) {
        let running = self.running();
        self.lock()
            .retain(|id, _| running.iter().any(|row| row.id == *id));
        let due = running.into_iter().filter(|row| self.is_due(row));
        let queried = due.collect::<Vec<_>>().into_iter().map(|row| {
            let this = Arc::clone(self);
            async move { this.query_guest(&row).await }
        });
        stream::iter(queried)
            .buffer_unordered(ABREAST)
            .collect::<()>()
            .await;
    }

    async fn query_guest(&self, row: &Container) {
        let (driver, domain) = (&*self.hypervisor, row.domain());
        let was = self.known(&row.id);
        if was.power.is_none() {
            self.refresh(domain).await;
        }
        if matches!(self.known(&row.id).power, Some(Power::Paused(_))) {
            // It cannot answer, and its last answer still holds.
            return;
        }
        let (ours, of_qemu) = tokio::join!(
            self.containers.guest_facts(&row.id),
            facts::answers(driver, domain)
        );
        let reply = match (ours, of_qemu) {
            (Some(report), _) => Some(facts::of_vmlet_guest(&report)),
            (None, Ok(true)) => {
                let mut reply = facts::gather(driver, domain).await;
                if row.spec.seed {
                    reply.missing = facts::missing(driver, domain).await;
                }
                Some(reply)
            }
            (None, Ok(false)) => None,
            (None, Err(_)) => return,
        };
        self.change(&row.id, |known| {
            known.agent = match reply {
                Some(_) => Agent::Connected,
                None => Agent::NotRunning,
            };
            known.reply = reply.unwrap_or(was.reply);
        });
        if let Some(entry) = self.lock().get_mut(&row.id) {
            let now = Instant::now();
            entry.queried = Some(now);
            if was.agent != Agent::Connected && entry.known.agent == Agent::Connected {
                entry.since = now;
            }
        }
    }

    fn is_due(&self, row: &Container) -> bool {
        let all = self.lock();
        let Some(entry) = all.get(&row.id) else {
            return true;
        };
        let boots = clock::now() < row.started_at.saturating_add(BOOT);
        let period = entry.known.period(entry.since.elapsed() < SOON, boots);
        entry
            .queried
            .is_none_or(|queried| queried.elapsed() >= period)
    }

    fn running(&self) -> Vec<Arc<Container>> {
        let mut all = self.containers.machines();
        all.retain(|row| row.phase.runs());
        all
    }

    fn change(&self, id: &ContainerId, change: impl FnOnce(&mut Known)) {
        let mut all = self.lock();
        let known = &mut all.entry(id.clone()).or_default().known;
        let before = known.clone();
        change(known);
        let changed = *known != before;
        drop(all);
        if changed {
            self.generation.send_modify(|generation| *generation += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Entry>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::facts::Interface;

    fn known(agent: Agent, addresses: &[&str]) -> Known {
        let addresses = addresses.iter().map(ToString::to_string);
        let reply = Reply {
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                mac: "02:00:00:00:00:01".to_owned(),
                addresses: addresses.collect(),
            }],
            ..Reply::default()
        };
        Known {
            agent,
            reply,
            ..Known::default()
        }
    }

    #[test]
    fn a_guest_is_queried_often_only_until_its_first_address_is_known() {
        let link_local = ["fe80::1/64", "169.254.1.1/16"];
        let waiting = [
            known(Agent::NoInfo, &[]),
            known(Agent::NotRunning, &[]),
            known(Agent::Connected, &[]),
            known(Agent::Connected, &link_local),
        ];
        for known in waiting {
            assert_eq!(known.period(true, true), FIRST, "{known:?}");
            assert_eq!(known.period(false, true), LOOK, "{known:?}");
            assert_eq!(known.period(false, false), PERIOD, "{known:?}");
        }
        let reached = known(Agent::Connected, &["fe80::1/64", "10.0.0.7/24"]);
        assert_eq!(reached.period(true, true), PERIOD);
    }
}
