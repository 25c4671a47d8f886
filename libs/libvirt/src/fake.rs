//! A hypervisor that only keeps state, for the tests of services.
//!
//! Invariant: it answers as the real one does: idempotent where the seam specifies it, the same
//! errors, the same events. What happens to a guest happens because a test requested it.
//! Failure: knobs make starts fail, guests unresponsive, or the connection close.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{RwLock, broadcast};
use uuid::Uuid;

mod disks;
mod domain;
mod faults;
mod holds;
mod hypervisor;
mod observations;
mod power;
mod size;

use domain::{FakeDomain, Inner};
pub use faults::Missed;

use crate::{End, Event, FailedDisk, Pause, State};

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

impl Default for FakeHypervisor {
    fn default() -> Self {
        Self {
            inner: Arc::default(),
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
