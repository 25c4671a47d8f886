//! The events of domains and of the connection, and what libvirt's numbers for states and events mean.
//!
//! Invariant: the conversions are pure and total; a number that is not known here is never an error.
//! Failure: none. An unknown reason is [`End::Unknown`], an unknown event is no event.

use std::ffi::c_int;

use uuid::Uuid;
use virt::sys;

use crate::{End, Pause, Power, State};

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The connection is up (again): events may have been missed, reconcile now.
    Connected,
    /// The connection is lost; calls fail with an unavailable error until it is back.
    Disconnected,
    /// The emulator of a domain runs.
    Started(Uuid),
    /// The emulator of a domain ended.
    Stopped(Uuid, End),
    /// A guest was paused or runs on.
    Power(Uuid),
    /// A guest boots again in the emulator that it has: it rebooted, or was reset. Resets that
    /// follow within two seconds are those of its firmware and belong to this event.
    Reset(Uuid),
    /// The agent in a guest has opened its channel: it answers now, or soon.
    AgentConnected(Uuid),
}

/// The event for a life cycle signal of libvirt, `None` for signals that have no consequence.
pub(crate) fn from_lifecycle(domain: Uuid, event: c_int, detail: c_int) -> Option<Event> {
    match event.cast_unsigned() {
        sys::VIR_DOMAIN_EVENT_STARTED => Some(Event::Started(domain)),
        sys::VIR_DOMAIN_EVENT_STOPPED => Some(Event::Stopped(domain, end_of_event(detail))),
        sys::VIR_DOMAIN_EVENT_SUSPENDED | sys::VIR_DOMAIN_EVENT_RESUMED => {
            Some(Event::Power(domain))
        }
        // A crashed guest follows with its STOPPED event, since our domains are destroyed on a
        // crash.
        _ => None,
    }
}

fn end_of_event(detail: c_int) -> End {
    match detail.cast_unsigned() {
        sys::VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN => End::GuestShutdown,
        sys::VIR_DOMAIN_EVENT_STOPPED_DESTROYED => End::Destroyed,
        sys::VIR_DOMAIN_EVENT_STOPPED_SAVED => End::Saved,
        // FAILED is also what libvirt reports of an emulator that ended without a message.
        sys::VIR_DOMAIN_EVENT_STOPPED_CRASHED | sys::VIR_DOMAIN_EVENT_STOPPED_FAILED => {
            End::Crashed
        }
        _ => End::Unknown,
    }
}

/// The state that libvirt's state and reason mean.
pub(crate) fn state(state: sys::virDomainState, reason: c_int) -> State {
    match state {
        sys::VIR_DOMAIN_SHUTOFF => State::Inactive(match reason.cast_unsigned() {
            sys::VIR_DOMAIN_SHUTOFF_SHUTDOWN => End::GuestShutdown,
            sys::VIR_DOMAIN_SHUTOFF_DESTROYED => End::Destroyed,
            sys::VIR_DOMAIN_SHUTOFF_CRASHED => End::Crashed,
            sys::VIR_DOMAIN_SHUTOFF_SAVED => End::Saved,
            _ => End::Unknown,
        }),
        // A crashed domain keeps its emulator only under `on_crash` values that we never write;
        // whatever it is now, nothing runs in it.
        sys::VIR_DOMAIN_CRASHED => State::Inactive(End::Crashed),
        _ => State::Active,
    }
}

/// Whether the guest runs, by libvirt's state and reason.
pub(crate) fn power(state: sys::virDomainState, reason: c_int) -> Power {
    match state {
        sys::VIR_DOMAIN_SHUTOFF | sys::VIR_DOMAIN_CRASHED => Power::Off,
        sys::VIR_DOMAIN_PAUSED => Power::Paused(match reason.cast_unsigned() {
            sys::VIR_DOMAIN_PAUSED_IOERROR => Pause::IoError,
            sys::VIR_DOMAIN_PAUSED_SAVE
            | sys::VIR_DOMAIN_PAUSED_DUMP
            | sys::VIR_DOMAIN_PAUSED_SNAPSHOT
            | sys::VIR_DOMAIN_PAUSED_SHUTTING_DOWN
            | sys::VIR_DOMAIN_PAUSED_STARTING_UP => Pause::Passing,
            // Also "migration": the state of a restored guest until it is resumed.
            _ => Pause::Asked,
        }),
        _ => Power::On,
    }
}

/// Why a connection was closed.
pub(crate) fn close_reason(reason: c_int) -> &'static str {
    match reason.cast_unsigned() {
        sys::VIR_CONNECT_CLOSE_REASON_EOF => "libvirt closed the connection",
        sys::VIR_CONNECT_CLOSE_REASON_KEEPALIVE => "libvirt has not answered for 15 s",
        sys::VIR_CONNECT_CLOSE_REASON_CLIENT => "the connection was closed on our side",
        _ => "the connection failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_domain_has_the_cause_of_its_stop() {
        let id = Uuid::nil();
        for (detail, end) in [
            (0, End::GuestShutdown),
            (1, End::Destroyed),
            (2, End::Crashed),
            (4, End::Saved),
            (5, End::Crashed),
            (7, End::Unknown),
            (-3, End::Unknown),
        ] {
            assert_eq!(from_lifecycle(id, 5, detail), Some(Event::Stopped(id, end)));
        }
        assert_eq!(from_lifecycle(id, 2, 0), Some(Event::Started(id)));
    }

    #[test]
    fn events_that_change_nothing_for_us_are_dropped() {
        for event in [-1, 0, 1, 6, 7, 8, 99] {
            assert_eq!(from_lifecycle(Uuid::nil(), event, 0), None);
        }
    }

    #[test]
    fn only_a_domain_without_emulator_is_inactive() {
        assert_eq!(state(5, 1), State::Inactive(End::GuestShutdown));
        assert_eq!(state(5, 2), State::Inactive(End::Destroyed));
        assert_eq!(state(5, 3), State::Inactive(End::Crashed));
        assert_eq!(state(5, 5), State::Inactive(End::Saved));
        assert_eq!(state(5, 0), State::Inactive(End::Unknown));
        assert_eq!(state(6, 1), State::Inactive(End::Crashed));
        for running in [0, 1, 2, 3, 4, 7, 42] {
            assert_eq!(state(running, 1), State::Active);
        }
    }

    #[test]
    fn a_paused_guest_has_a_reason() {
        let id = Uuid::nil();
        assert_eq!(from_lifecycle(id, 3, 0), Some(Event::Power(id)));
        assert_eq!(from_lifecycle(id, 4, 0), Some(Event::Power(id)));
        assert_eq!(power(1, 1), Power::On);
        assert_eq!(power(3, 1), Power::Paused(Pause::Asked));
        assert_eq!(power(3, 2), Power::Paused(Pause::Asked));
        assert_eq!(power(3, 3), Power::Paused(Pause::Passing));
        assert_eq!(power(3, 5), Power::Paused(Pause::IoError));
        assert_eq!(power(5, 5), Power::Off);
    }
}
