//! Calls of the fake that end otherwise than they should: with their deadline, or half done.
//!
//! Invariant: each knob is for the next such call alone; what comes late is prevented by the end or the removal
//! of the domain, as libvirt does.
//! Failure: [`Error::Deadline`], after which the caller does not know the outcome.

use std::time::Duration;

use uuid::Uuid;

use super::{EVENT_BACKLOG, FakeHypervisor};
use crate::{End, Error, Event, Result, State};

/// What a call that misses its deadline has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// Nothing, and never will.
    Nothing,
    /// All of it.
    Everything,
    /// Nothing yet; for starts: see [`FakeHypervisor::end_late_starts`].
    Later,
}

impl FakeHypervisor {
    /// The next call of that name ends with its deadline. Names are those of [`crate::Hypervisor`]: `define`,
    /// `start`, `save`, `restore`, `suspend`, `resume`, `destroy`, `undefine`.
    pub fn miss_deadline(&self, call: &'static str, missed: Missed) {
        self.lock().missed.insert(call, missed);
    }

    /// Starts that missed their deadline end now, where their domain was neither ended nor removed.
    pub async fn end_late_starts(&self) {
        let late = std::mem::take(&mut self.lock().late_starts);
        for domain in late {
            // A domain that was redefined and started runs already.
            let _ = self.begin(domain, std::future::pending()).await;
        }
    }

    /// The next `orders` to agents to power off get no turn: each is [`Error::Busy`] after this wait, and is not
    /// sent.
    pub fn delay_orders(&self, orders: usize, wait: Duration) {
        let mut inner = self.lock();
        inner.busy_orders = orders;
        inner.order_wait = wait;
    }

    /// The emulator of the next start ends before the start does, which fails with `reason`.
    pub fn start_partly(&self, reason: &str) {
        self.lock().partial_start = Some(reason.to_owned());
    }

    /// Receivers of events have missed all that they have not received yet.
    pub fn lose_events(&self) {
        for _ in 0..=EVENT_BACKLOG {
            self.emit(Event::Power(Uuid::nil()));
        }
    }

    /// The result of a call, unless it misses its deadline.
    pub(super) async fn in_time(
        &self,
        call: &'static str,
        domain: Uuid,
        work: impl Future<Output = Result<()>> + Send,
    ) -> Result<()> {
        let missed = self.lock().missed.remove(call);
        match missed {
            None => return work.await,
            Some(Missed::Nothing) => {}
            Some(Missed::Everything) => work.await?,
            Some(Missed::Later) => self.lock().late_starts.push(domain),
        }
        Err(Error::Deadline {
            call,
            deadline: Duration::from_secs(60),
        })
    }

    /// The wait of an order to an agent for its turn.
    pub(super) async fn order_turn(&self) -> Result<()> {
        let wait = {
            let mut inner = self.lock();
            match inner.busy_orders.checked_sub(1) {
                None => return Ok(()),
                Some(left) => inner.busy_orders = left,
            }
            inner.order_wait
        };
        tokio::time::sleep(wait).await;
        let call = "guest agent command";
        Err(Error::Busy { call, wait })
    }

    /// Nothing of a domain comes late any more.
    pub(super) fn forget_late_starts(&self, domain: Uuid) {
        self.lock().late_starts.retain(|late| *late != domain);
    }

    /// Ends a start that is to be partial; `None`: it is not.
    pub(super) fn end_partly(&self, domain: Uuid) -> Option<Error> {
        let mut inner = self.lock();
        let reason = inner.partial_start.take()?;
        if let Some(found) = inner.domains.get_mut(&domain) {
            found.state = State::Inactive(End::Unknown);
        }
        drop(inner);
        self.emit(Event::Stopped(domain, End::Crashed));
        let call = "start";
        Some(Error::Refused { call, reason })
    }
}
