//! The state machine of a sandbox, as a pure value.
//!
//! ```text
//! Creating ──NetworkUp──► Ready ──StopRequested──► Stopping ──NetworkDown──► Stopped
//!     │                                               ▲                         │
//!     └───────────────StopRequested───────────────────┘                RemoveRequested
//!                                                                               ▼
//!                                                                           Removing ─► (gone)
//! ```
//!
//! Invariant: every pair of phase and event has an answer; asking again for what was asked before
//! changes nothing.
//! Failure: `None` means that the event makes no sense in this phase and must be refused.

use std::fmt;

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Recorded; its network is being made. Not listed.
    Creating,
    /// Its network is up.
    Ready,
    /// Its machine and its network are being taken down.
    Stopping,
    /// Only its record and its disk are left.
    Stopped,
    /// Its disk and its record are being removed.
    Removing,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The network is made.
    NetworkUp,
    /// A stop was requested, or its creation failed.
    StopRequested,
    /// Machine and network no longer exist.
    NetworkDown,
    /// A removal was requested.
    RemoveRequested,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 5] = [
        Self::Creating,
        Self::Ready,
        Self::Stopping,
        Self::Stopped,
        Self::Removing,
    ];

    /// The phase after `event`, or `None` when the event must be refused.
    pub const fn on(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Creating, Event::NetworkUp) => Some(Self::Ready),
            (Self::Creating | Self::Ready | Self::Stopping, Event::StopRequested) => {
                Some(Self::Stopping)
            }
            (Self::Stopping | Self::Stopped, Event::NetworkDown)
            | (Self::Stopped, Event::StopRequested) => Some(Self::Stopped),
            (Self::Stopped | Self::Removing, Event::RemoveRequested)
            | (Self::Removing, Event::StopRequested | Event::NetworkDown) => Some(Self::Removing),
            (Self::Ready | Self::Stopping | Self::Stopped | Self::Removing, Event::NetworkUp)
            | (Self::Creating | Self::Ready, Event::NetworkDown)
            | (Self::Creating | Self::Ready | Self::Stopping, Event::RemoveRequested) => None,
        }
    }

    /// Whether lists show the sandbox.
    pub const fn is_listed(self) -> bool {
        !matches!(self, Self::Creating)
    }

    /// The value in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Removing => "removing",
        }
    }

    /// The phase of a value in the database.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each event the phases after Creating, Ready, Stopping, Stopped and Removing; `-` where
    /// it is refused.
    const TABLE: [(Event, &str); 4] = [
        (Event::NetworkUp, "ready - - - -"),
        (
            Event::StopRequested,
            "stopping stopping stopping stopped removing",
        ),
        (Event::NetworkDown, "- - stopped stopped removing"),
        (Event::RemoveRequested, "- - - removing removing"),
    ];

    #[test]
    fn every_pair_of_phase_and_event_has_its_answer() {
        for (event, row) in TABLE {
            let after = Phase::ALL.map(|phase| phase.on(event).map_or("-", Phase::as_str));
            assert_eq!(after.join(" "), row, "{event:?}");
        }
    }

    #[test]
    fn only_a_sandbox_whose_network_is_not_up_yet_is_in_no_list() {
        let listed = Phase::ALL.map(Phase::is_listed);
        assert_eq!(listed, [false, true, true, true, true]);
    }

    #[test]
    fn texts_and_phases_are_one_to_one() {
        for phase in Phase::ALL {
            assert_eq!(Phase::parse(&phase.to_string()), Some(phase));
        }
        assert_eq!(Phase::parse("asleep"), None);
    }

    #[test]
    fn the_happy_path_leads_from_creating_to_removing() {
        let events = [
            Event::NetworkUp,
            Event::StopRequested,
            Event::NetworkDown,
            Event::RemoveRequested,
        ];
        let end = events.into_iter().try_fold(Phase::Creating, Phase::on);
        assert_eq!(end, Some(Phase::Removing));
    }

    #[test]
    fn asking_twice_changes_nothing_the_second_time() {
        for event in [
            Event::StopRequested,
            Event::NetworkDown,
            Event::RemoveRequested,
        ] {
            for phase in Phase::ALL {
                if let Some(after) = phase.on(event) {
                    assert_eq!(after.on(event), Some(after), "{phase} on {event:?}");
                }
            }
        }
    }

    #[test]
    fn a_sandbox_with_a_network_is_never_removed_before_it_is_stopped() {
        for phase in [Phase::Creating, Phase::Ready, Phase::Stopping] {
            assert_eq!(phase.on(Event::RemoveRequested), None);
        }
    }

    #[test]
    fn nothing_comes_back_from_stopping() {
        for phase in [Phase::Stopping, Phase::Stopped, Phase::Removing] {
            assert_eq!(phase.on(Event::NetworkUp), None);
        }
    }
}
