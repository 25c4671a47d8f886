//! The state machine of a container, as a pure value.
//!
//! ```text
//! Creating ──Prepared──► Created ──StartRequested──► Starting ──Started──► Running
//!                          ▲ │                         │  │                │    │
//!                          │ │      StartUndone        │  │          StopRequested
//!                          └─┼─────────────────────────┘  │                │    ▼
//!                            │                          Ended            Ended  Stopping
//!                     RemoveRequested                     ▼                ▼    │ Ended
//!                            └──────► Removing ◄──────  Exited ◄────────────────┘
//!
//! Created ──Superseded──► Exited
//! ```
//!
//! Invariant: every pair of phase and event has an answer; Exited leads nowhere but to Removing.
//! Failure: `None` means that the event makes no sense in this phase and must be refused.

use std::fmt;

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Recorded; its disk is being made. Not listed.
    Creating,
    /// Ready to start.
    Created,
    /// Its machine is being started.
    Starting,
    /// Its machine runs.
    Running,
    /// Its machine runs, was requested to power off, and will be killed in the end.
    Stopping,
    /// Its machine ended.
    Exited,
    /// Its traces are being removed.
    Removing,
}

/// What happens to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its disk is there.
    Prepared,
    /// A start was requested.
    StartRequested,
    /// The start was undone and may be repeated.
    StartUndone,
    /// The emulator runs.
    Started,
    /// A stop was requested.
    StopRequested,
    /// It was never started, and a later attempt takes its place.
    Superseded,
    /// The emulator ended, or could not be started at all.
    Ended,
    /// A removal was requested.
    RemoveRequested,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 7] = [
        Self::Creating,
        Self::Created,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Exited,
        Self::Removing,
    ];

    /// The phase after `event`, or `None` when the event must be refused.
    pub const fn on(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Creating, Event::Prepared) | (Self::Starting, Event::StartUndone) => {
                Some(Self::Created)
            }
            (Self::Created, Event::StartRequested) => Some(Self::Starting),
            (Self::Starting, Event::Started) => Some(Self::Running),
            (Self::Running | Self::Stopping, Event::StopRequested) => Some(Self::Stopping),
            (Self::Starting | Self::Running | Self::Stopping, Event::Ended)
            | (Self::Created, Event::Superseded) => Some(Self::Exited),
            (
                Self::Creating | Self::Created | Self::Exited | Self::Removing,
                Event::RemoveRequested,
            ) => Some(Self::Removing),
            _ => None,
        }
    }

    /// Whether lists show the container.
    pub const fn is_listed(self) -> bool {
        !matches!(self, Self::Creating)
    }

    /// Whether the container takes the sandbox's one place for a machine.
    pub const fn is_live(self) -> bool {
        !matches!(self, Self::Exited | Self::Removing)
    }

    /// Whether an emulator of it runs, as far as is known.
    pub const fn runs(self) -> bool {
        matches!(self, Self::Running | Self::Stopping)
    }

    /// Whether an emulator of it may run.
    pub const fn may_run(self) -> bool {
        matches!(self, Self::Starting) || self.runs()
    }

    /// The value in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Exited => "exited",
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

    /// For each event the phases after Creating, Created, Starting, Running, Stopping, Exited and
    /// Removing; `-` where it is refused.
    const TABLE: [(Event, &str); 8] = [
        (Event::Prepared, "created - - - - - -"),
        (Event::StartRequested, "- starting - - - - -"),
        (Event::StartUndone, "- - created - - - -"),
        (Event::Started, "- - running - - - -"),
        (Event::StopRequested, "- - - stopping stopping - -"),
        (Event::Superseded, "- exited - - - - -"),
        (Event::Ended, "- - exited exited exited - -"),
        (
            Event::RemoveRequested,
            "removing removing - - - removing removing",
        ),
    ];

    #[test]
    fn every_pair_of_phase_and_event_has_its_answer() {
        for (event, row) in TABLE {
            let after = Phase::ALL.map(|phase| phase.on(event).map_or("-", Phase::as_str));
            assert_eq!(after.join(" "), row, "{event:?}");
        }
    }

    #[test]
    fn each_phase_has_its_container_state() {
        let says = |what: fn(Phase) -> bool| Phase::ALL.map(what).map(u8::from);
        assert_eq!(says(Phase::is_listed), [0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(says(Phase::is_live), [1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(says(Phase::runs), [0, 0, 0, 1, 1, 0, 0]);
        assert_eq!(says(Phase::may_run), [0, 0, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn texts_and_phases_are_one_to_one() {
        for phase in Phase::ALL {
            assert_eq!(Phase::parse(&phase.to_string()), Some(phase));
        }
        assert_eq!(Phase::parse("paused"), None);
    }

    #[test]
    fn the_happy_path_leads_from_creating_to_removing() {
        let events = [
            Event::Prepared,
            Event::StartRequested,
            Event::Started,
            Event::StopRequested,
            Event::Ended,
            Event::RemoveRequested,
        ];
        assert_eq!(
            events.into_iter().try_fold(Phase::Creating, Phase::on),
            Some(Phase::Removing)
        );
    }

    #[test]
    fn a_machine_that_may_run_is_never_removed() {
        for phase in Phase::ALL.into_iter().filter(|phase| phase.may_run()) {
            assert_eq!(phase.on(Event::RemoveRequested), None);
        }
    }

    #[test]
    fn a_start_that_was_undone_can_be_repeated() {
        let phase = Phase::Created
            .on(Event::StartRequested)
            .and_then(|p| p.on(Event::StartUndone));
        assert_eq!(phase, Some(Phase::Created));
    }
}
