//! What is known of machines beyond their rows: whether they run, and what their guests say.
//!
//! Invariant: power follows libvirt's events, and is read again after each connection. A guest
//! gets a request for facts every [`PERIOD`], and more often until it has an address, in [turns](Turns)
//! that namespaces share: a guest that answers slowly ends its own turn, and holds up no other
//! namespace's. What a guest has said is dropped once an agent that started later has answered;
//! each boot starts one.
//! Failure: what cannot be had is absent, or as it was.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libvirt::{Event, Hypervisor, Pause, Power, Versions};
use podspec::ContainerId;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::facts::{self, Reply, Survey};
use super::turns::Turns;
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
    /// The question that comes next, see [`Survey`].
    next: usize,
    /// When the machine was seen first, or its agent appeared.
    since: Instant,
    /// Whether the reply is of an agent before that.
    is_stale: bool,
    /// Counts agents that may have appeared, for turns that began before.
    appearances: u64,
}

/// A turn of a guest, as it begins.
#[derive(Debug)]
struct Turn {
    survey: Survey,
    /// Whether the survey keeps nothing of the reply.
    is_new: bool,
    appearances: u64,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            known: Known::default(),
            queried: None,
            next: 0,
            since: Instant::now(),
            is_stale: false,
            appearances: 0,
        }
    }
}

impl Entry {
    /// The agent that has answered until now may be gone.
    fn renew(&mut self) {
        self.next = 0;
        self.is_stale = true;
        self.appearances += 1;
    }

    fn turn(&self) -> Turn {
        let is_new = self.is_stale || self.known.agent != Agent::Connected;
        let survey = if is_new {
            Survey::default()
        } else {
            Survey {
                reply: self.known.reply.clone(),
                next: self.next,
            }
        };
        Turn {
            survey,
            is_new,
            appearances: self.appearances,
        }
    }

    /// What the guest has answered in a turn; `is_new` and `appearances` are of its begin.
    fn end(&mut self, answer: Option<Survey>, is_new: bool, appearances: u64) {
        let was = self.known.agent;
        self.known.agent = match answer {
            Some(_) => Agent::Connected,
            None => Agent::NotRunning,
        };
        let is_overtaken = self.appearances != appearances;
        let next = answer.as_ref().map(|survey| survey.next);
        if let Some(survey) = answer
            && (is_new || !is_overtaken)
        {
            self.known.reply = survey.reply;
        }
        if is_overtaken {
            // The next turn is due as it was, and begins with the first question.
            return;
        }
        let now = Instant::now();
        self.queried = Some(now);
        self.next = next.unwrap_or_default();
        if next.is_some() {
            self.is_stale = false;
            if was != Agent::Connected {
                self.since = now;
            }
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
        let mut turns = Turns::default();
        if self.hypervisor.is_connected() {
            self.connected().await;
        }
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(Event::Connected) | Err(RecvError::Lagged(_)) => self.connected().await,
                    Ok(Event::Started(domain) | Event::Power(domain)) => self.refresh(domain).await,
                    Ok(Event::AgentConnected(domain) | Event::Reset(domain)) => {
                        self.query_soon(domain);
                    }
                    Ok(Event::Stopped(..) | Event::Disconnected) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = look.tick() => self.query_guests(&mut turns),
                Some(()) = turns.ended() => {}
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
            // It may have booted while no event was received.
            self.lock().entry(row.id.clone()).or_default().renew();
            self.refresh(row.domain()).await;
        }
    }

    fn row(&self, domain: Uuid) -> Option<Arc<Container>> {
        let all = self.containers.machines().into_iter();
        let mut running = all.filter(|row| row.phase.may_run());
        running.find(|row| row.domain() == domain)
    }

    /// The agent of a guest has just started, or is about to, since the guest boots.
    fn query_soon(&self, domain: Uuid) {
        if let Some(row) = self.row(domain) {
            let mut all = self.lock();
            let entry = all.entry(row.id.clone()).or_default();
            (entry.queried, entry.since) = (None, Instant::now());
            entry.renew();
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

    /// Queries the guests that are due, each in its turn, and forgets those that do not run any more.
    fn query_guests(self: &Arc<Self>, turns: &mut Turns) {
        let running = self.running();
        let ids: HashSet<_> = running.iter().map(|row| &row.id).collect();
        self.lock().retain(|id, _| ids.contains(id));
        for row in running.iter().filter(|row| self.is_due(row)) {
            let namespace = self.containers.namespace(row);
            let this = Arc::clone(self);
            let queried = Arc::clone(row);
            turns.begin(&row.id, namespace, async move {
                this.query_guest(&queried).await;
            });
        }
    }

    async fn query_guest(&self, row: &Container) {
        if self.containers.check_exec(&row.id).is_err() {
            // It has ended since it was due.
            return;
        }
        let begun = Instant::now();
        let driver = &*self.hypervisor;
        let domain = row.domain();
        driver.set_namespace(domain, &self.containers.namespace(row));
        let Turn {
            survey,
            is_new,
            appearances,
        } = self.lock().entry(row.id.clone()).or_default().turn();
        if self.known(&row.id).power.is_none() {
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
        let answer = match (ours, of_qemu) {
            (Some(report), _) => Some(Survey {
                reply: facts::of_vmlet_guest(&report),
                next: 0,
            }),
            (None, Ok(true)) => Some(survey.turn(driver, domain, row.spec.seed, begun).await),
            (None, Ok(false)) => None,
            (None, Err(_)) => return,
        };
        self.change_entry(&row.id, |entry| entry.end(answer, is_new, appearances));
    }

    fn is_due(&self, row: &Container) -> bool {
        let all = self.lock();
        let Some(entry) = all.get(&row.id) else {
            return true;
        };
        let boots = clock::now() < row.started_at.saturating_add(BOOT);
        let mut period = entry.known.period(entry.since.elapsed() < SOON, boots);
        if entry.next > 0 {
            period = period.min(LOOK);
        }
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
        self.change_entry(id, |entry| change(&mut entry.known));
    }

    fn change_entry(&self, id: &ContainerId, change: impl FnOnce(&mut Entry)) {
        let mut all = self.lock();
        let entry = all.entry(id.clone()).or_default();
        let before = entry.known.clone();
        change(entry);
        let changed = entry.known != before;
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
mod tests;
