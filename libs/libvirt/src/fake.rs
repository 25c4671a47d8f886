//! A hypervisor that only keeps state, for the tests of services.
//!
//! Invariant: it answers as the real one does: idempotent where the seam specifies it, the same
//! errors, the same events. What happens to a guest happens because a test requested it.
//! Failure: knobs make starts fail, guests unresponsive, or the connection close.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock, broadcast};
use uuid::Uuid;

mod disks;
mod faults;
mod hypervisor;
mod power;
mod size;

use disks::{Job, LateSwitch};
pub use faults::Missed;

use crate::{Cable, End, Event, FailedDisk, MachineElement, Pause, Shutdown, Size, State};

/// Events that a receiver may lag behind.
const EVENT_BACKLOG: usize = 1024;

/// A fake hypervisor; clones share their state.
#[derive(Debug, Clone)]
pub struct FakeHypervisor {
    inner: Arc<Mutex<Inner>>,
    starts: Arc<RwLock<()>>,
    restore_turns: Arc<RwLock<()>>,
    restores: Arc<RwLock<()>>,
    switches: Arc<RwLock<()>>,
    looks: Arc<tokio::sync::Mutex<()>>,
    aborts: Arc<tokio::sync::Notify>,
    events: broadcast::Sender<Event>,
}

#[derive(Debug)]
struct Inner {
    domains: BTreeMap<Uuid, FakeDomain>,
    connected: bool,
    refusal: Option<String>,
    guest_ignores: bool,
    guest_keeps: bool,
    agent: Option<VecDeque<Value>>,
    commands: Vec<Value>,
    shutdowns: Vec<(Uuid, Shutdown)>,
    reboots: Vec<(Uuid, Option<Shutdown>)>,
    cables: Vec<(String, Cable, bool)>,
    stats_calls: usize,
    hangs: bool,
    /// Also of domains that no longer exist.
    resumes: BTreeMap<Uuid, usize>,
    restores_outlive_kills: bool,
    /// Why a switch of a disk fails, and whether it takes place all the same.
    switch_failure: Option<(String, bool)>,
    is_locked: bool,
    /// How long an agent takes for each answer.
    agent_pause: Duration,
    /// How many orders to agents get no turn.
    busy_orders: usize,
    /// How long each of them waits for it.
    order_wait: Duration,
    /// What a guest that runs while its memory is written fills its file with, until that is aborted.
    busy_memory: Option<u64>,
    /// What libvirt writes of the memory of a busy guest at present.
    busy_save: Option<PathBuf>,
    /// Whether guests ran while their memory was written with a switch, the earliest first.
    memory_switches: Vec<bool>,
    /// A switch that a client has left behind.
    late_switch: Option<LateSwitch>,
    /// Block jobs make no progress.
    holds_jobs: bool,
    /// How many requests to pull wait for an answer, which none gets then.
    held_pulls: Option<usize>,
    /// Why the end of a block job by a pivot fails, and whether it takes place all the same.
    pivot_failure: Option<(String, bool)>,
    /// Calls that end with their deadline, by name.
    missed: BTreeMap<&'static str, Missed>,
    /// Domains whose start has missed its deadline and goes on.
    late_starts: Vec<Uuid>,
    /// Why the next start fails after its emulator has begun.
    partial_start: Option<String>,
}

#[derive(Debug)]
struct FakeDomain {
    name: String,
    mark: Option<MachineElement>,
    cpu_nanoseconds: u64,
    cpus: Vec<u32>,
    size: Option<Size>,
    xml: String,
    state: State,
    paused: Option<Pause>,
    /// The disk that fails, for as long as it does: the guest does not run beyond its next request.
    fails: Option<FailedDisk>,
    /// The files of its first disk, the one that the guest writes to first.
    files: Vec<PathBuf>,
    /// The block job of its first disk.
    job: Option<Job>,
}

impl Default for FakeHypervisor {
    fn default() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                domains: BTreeMap::new(),
                connected: true,
                refusal: None,
                guest_ignores: false,
                guest_keeps: false,
                agent: None,
                commands: Vec::new(),
                shutdowns: Vec::new(),
                reboots: Vec::new(),
                cables: Vec::new(),
                stats_calls: 0,
                hangs: false,
                restores_outlive_kills: false,
                resumes: BTreeMap::new(),
                switch_failure: None,
                is_locked: false,
                agent_pause: Duration::ZERO,
                busy_orders: 0,
                order_wait: Duration::ZERO,
                busy_memory: None,
                busy_save: None,
                memory_switches: Vec::new(),
                late_switch: None,
                holds_jobs: false,
                held_pulls: None,
                pivot_failure: None,
                missed: BTreeMap::new(),
                late_starts: Vec::new(),
                partial_start: None,
            })),
            starts: Arc::default(),
            restore_turns: Arc::default(),
            restores: Arc::default(),
            switches: Arc::default(),
            looks: Arc::default(),
            aborts: Arc::default(),
            events: broadcast::channel(EVENT_BACKLOG).0,
        }
    }
}

impl FakeHypervisor {
    /// Every start fails with `reason`.
    #[must_use]
    pub fn refusing_start(self, reason: &str) -> Self {
        self.lock().refusal = Some(reason.to_owned());
        self
    }

    /// Guests stay as they are on request to power off or to reboot.
    #[must_use]
    pub fn guest_ignores_shutdown(self) -> Self {
        self.lock().guest_ignores = true;
        self
    }

    /// A restore ends well although the domain is destroyed meanwhile, as when both happen at once.
    #[must_use]
    pub fn restores_outlive_kills(self) -> Self {
        self.lock().restores_outlive_kills = true;
        self
    }

    /// Guests have an agent, which answers with these values in turn and then falls silent; an
    /// object with the key `error` is a refusal. Without this knob there is no agent.
    #[must_use]
    pub fn agent_answering(self, replies: impl IntoIterator<Item = Value>) -> Self {
        self.lock().agent = Some(replies.into_iter().collect());
        self
    }

    /// Agents take this time for each answer from now on.
    pub fn slow_agents(&self, pause: Duration) {
        self.lock().agent_pause = pause;
    }

    /// The agent of a guest starts: it answers from now on, as with [`Self::agent_answering`].
    pub fn start_agent(&self, domain: Uuid, replies: impl IntoIterator<Item = Value>) {
        self.lock().agent = Some(replies.into_iter().collect());
        self.emit(Event::AgentConnected(domain));
    }

    /// Switches of disks fail from now on; `takes_place`: the emulator has the other file all the same.
    pub fn fail_switches(&self, reason: &str, takes_place: bool) {
        self.lock().switch_failure = Some((reason.to_owned(), takes_place));
    }

    /// Another request has the machines for longer than switches of disks wait, from now on.
    pub fn lock_machines(&self) {
        self.lock().is_locked = true;
    }

    /// Switches of disks succeed again.
    pub fn accept_switches(&self) {
        let mut inner = self.lock();
        inner.switch_failure = None;
        inner.is_locked = false;
    }

    /// Starts succeed again.
    pub fn accept_starts(&self) {
        self.lock().refusal = None;
    }

    /// Guests keep the virtual CPUs and the memory that they have, or again do as requested.
    pub fn guest_keeps_its_size(&self, keeps: bool) {
        let mut inner = self.lock();
        inner.guest_keeps = keeps;
        for size in inner.domains.values_mut().filter_map(|d| d.size.as_mut()) {
            if let Some(spare) = &mut size.spare
                && !keeps
            {
                spare.plugged = spare.requested;
            }
        }
    }

    /// What a running machine has of virtual CPUs and memory.
    pub fn size_of(&self, domain: Uuid) -> Option<Size> {
        self.lock().domains.get(&domain)?.size
    }

    /// The connection ends: calls fail until [`Self::reconnect`].
    pub fn disconnect(&self) {
        self.lock().connected = false;
        self.emit(Event::Disconnected);
    }

    /// The connection returns.
    pub fn reconnect(&self) {
        self.lock().connected = true;
        self.emit(Event::Connected);
    }

    /// The guest powers itself off. No event is seen while disconnected, as in life.
    pub fn power_off(&self, domain: Uuid) {
        self.end(domain, End::GuestShutdown);
    }

    /// The emulator ends.
    pub fn crash(&self, domain: Uuid) {
        self.end(domain, End::Crashed);
    }

    /// A disk fails until [`Self::mend_disk`]: the guest is paused, also whenever it is resumed.
    pub fn fail_disk(&self, domain: Uuid, disk: FailedDisk) {
        if let Some(found) = self.lock().domains.get_mut(&domain) {
            found.fails = Some(disk);
            found.paused = Some(Pause::IoError);
        }
        self.emit(Event::Power(domain));
    }

    /// The disk works again; the guest stays as it is.
    pub fn mend_disk(&self, domain: Uuid) {
        if let Some(found) = self.lock().domains.get_mut(&domain) {
            found.fails = None;
        }
    }

    /// How often a guest was resumed, also in vain.
    pub fn resumes(&self, domain: Uuid) -> usize {
        self.lock().resumes.get(&domain).copied().unwrap_or(0)
    }

    /// The domain vanishes without an event, as by the hand of an administrator.
    pub fn lose(&self, domain: Uuid) {
        self.lock().domains.remove(&domain);
    }

    /// The emulator has used this much CPU since its start.
    pub fn burn(&self, domain: Uuid, nanoseconds: u64) {
        if let Some(domain) = self.lock().domains.get_mut(&domain) {
            domain.cpu_nanoseconds = nanoseconds;
        }
    }

    /// Requests for statistics are not answered any more, or again.
    pub fn hang_stats(&self, hangs: bool) {
        self.lock().hangs = hangs;
    }

    /// Starts wait for their turn until what this returns is dropped, also those that are refused.
    pub async fn hold_starts(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.starts).write_owned().await
    }

    /// Restores wait for their turn until what this returns is dropped.
    pub async fn hold_restore_turns(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.restore_turns).write_owned().await
    }

    /// Restores come to no end until what this returns is dropped, or the domain is destroyed; it is
    /// there meanwhile.
    pub async fn hold_restores(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.restores).write_owned().await
    }

    /// Switches of disks come to no end until what this returns is dropped, and do not take place when they are given
    /// up.
    pub async fn hold_switches(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.switches).write_owned().await
    }

    /// Looks at a domain wait until what this returns is dropped. As in the real one they wait for
    /// each other, too.
    pub async fn hold_looks(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.looks).lock_owned().await
    }

    /// How often statistics were requested.
    pub fn stats_calls(&self) -> usize {
        self.lock().stats_calls
    }

    /// The CPU set of a domain, as last requested.
    pub fn pinned(&self, domain: Uuid) -> Vec<u32> {
        let inner = self.lock();
        inner
            .domains
            .get(&domain)
            .map(|d| d.cpus.clone())
            .unwrap_or_default()
    }

    /// The XML by which a domain was last defined.
    pub fn xml(&self, domain: Uuid) -> Option<String> {
        self.lock().domains.get(&domain).map(|d| d.xml.clone())
    }

    /// Agent commands so far, in order.
    pub fn agent_commands(&self) -> Vec<Value> {
        self.lock().commands.clone()
    }

    /// Requests to power off so far, in order.
    pub fn shutdowns(&self) -> Vec<(Uuid, Shutdown)> {
        self.lock().shutdowns.clone()
    }

    /// Requests to reboot so far, in order; without a way for the reset button.
    pub fn reboots(&self) -> Vec<(Uuid, Option<Shutdown>)> {
        self.lock().reboots.clone()
    }

    /// Cables that were pulled or plugged in so far, in order, and whether the guest ran then.
    pub fn cables(&self) -> Vec<(String, Cable, bool)> {
        self.lock().cables.clone()
    }

    fn end(&self, domain: Uuid, end: End) {
        let mut inner = self.lock();
        let connected = inner.connected;
        let Some(found) = inner.domains.get_mut(&domain) else {
            return;
        };
        if found.state == State::Active {
            found.state = State::Inactive(end);
            found.paused = None;
            found.job = None;
            drop(inner);
            if connected {
                self.emit(Event::Stopped(domain, end));
            }
        }
    }

    fn emit(&self, event: Event) {
        // A test without a receiver does not care.
        let _ = self.events.send(event);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an agent that never answers looks like from here.
fn silence(deadline: Duration) -> crate::Error {
    crate::Error::Agent {
        reason: format!("no answer within {} s", deadline.as_secs()),
    }
}

/// What a guest without an agent looks like from here.
fn absence() -> crate::Error {
    crate::Error::NoAgent {
        reason: "QEMU guest agent is not connected".to_owned(),
    }
}
