//! When a guest has to have answered, and which lane of calls the request takes.
//!
//! Invariant: an order has its time from the permit on, whatever it waited; a request has one end for all.
//! Failure: none here.

use std::time::{Duration, Instant};

use crate::libvirt::lane::Lane;
use crate::libvirt::plan::Time;

/// How long an order waits for commands to the same agent and for other orders, together.
pub(super) const ORDER_TURN: Duration = Duration::from_secs(5);

/// What a call may take beyond the time that libvirt gives the guest.
pub(super) const MARGIN: Duration = Duration::from_secs(2);

/// When a guest has to have answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// The request ends then, wherever it is.
    Until(Instant),
    /// The same, of a question that a guest answers promptly, or counts as slow.
    Question(Instant),
    /// An order: the guest has this time from the permit on.
    Order(Duration),
}

impl Limit {
    /// What is left for the guest.
    pub(super) fn left(self) -> Duration {
        match self {
            Self::Until(end) | Self::Question(end) => end.saturating_duration_since(Instant::now()),
            Self::Order(time) => time,
        }
    }

    pub(super) fn time(self) -> Time {
        match self {
            Self::Until(end) | Self::Question(end) => Time::Until(end + MARGIN),
            Self::Order(time) => Time::Apart {
                wait: ORDER_TURN,
                call: time + MARGIN,
            },
        }
    }

    pub(super) const fn lane(self, is_known: bool) -> Lane {
        match self {
            Self::Order(_) => Lane::AgentOrders,
            Self::Until(_) | Self::Question(_) if is_known => Lane::Agents,
            Self::Until(_) | Self::Question(_) => Lane::UnresponsiveAgents,
        }
    }
}
