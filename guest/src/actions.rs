//! Actions that are no commands: reports of facts and usage, the clock, and frozen file systems.
//!
//! Invariant: a freeze has begun when the next message is read, so that a thaw that follows it ends it.
//! Failure: a sentence for the host.

use std::sync::Arc;
use std::time::Duration;

use guestapi::request::Action;
use guestapi::{Answer, Request, SetLimits};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};

use crate::facts::facts;
use crate::frozen::{Freeze, Freezing, Frozen};
use crate::sessions::Sessions;
use crate::usage::usage;

/// A request that is performed.
#[derive(Debug)]
pub(crate) enum Work {
    Freeze {
        /// The number of the request.
        number: u64,
        freeze: Result<Freeze, String>,
    },
    Other(Request),
}

/// What actions are about.
#[derive(Debug)]
pub(crate) struct Subjects<'a> {
    pub(crate) frozen: &'a Frozen,
    pub(crate) freezing: &'a Freezing,
    pub(crate) sessions: &'a Sessions,
}

impl Work {
    /// Begins what later requests may be about; waits for nothing.
    pub(crate) fn begin(request: Request, frozen: &Arc<Frozen>) -> Self {
        match &request.action {
            Some(Action::Freeze(freeze)) => Self::Freeze {
                number: request.number,
                freeze: frozen.begin(freeze.seconds),
            },
            _ => Self::Other(request),
        }
    }
}

/// Does what is requested.
pub(crate) fn perform(work: Work, subjects: &Subjects<'_>) -> Answer {
    match work {
        Work::Freeze { number, freeze } => {
            let frozen = freeze.and_then(|freeze| freeze.freeze(subjects.freezing));
            answer(number, frozen.map(counted))
        }
        Work::Other(request) => answer(request.number, act(&request, subjects)),
    }
}

fn answer(number: u64, done: Result<Answer, String>) -> Answer {
    let answer = done.unwrap_or_else(|error| Answer {
        error,
        ..Answer::default()
    });
    Answer { number, ..answer }
}

fn act(request: &Request, subjects: &Subjects<'_>) -> Result<Answer, String> {
    let sessions = subjects.sessions;
    match &request.action {
        Some(Action::ReportFacts(_)) => Ok(Answer {
            facts: Some(facts()),
            ..Answer::default()
        }),
        Some(Action::SetTime(time)) => set_time(time.nanoseconds).map(|()| Answer::default()),
        Some(Action::ReportUsage(which)) => Ok(Answer {
            usage: usage(&sessions.kept(&which.keep)),
            ..Answer::default()
        }),
        Some(Action::SetLimits(limits)) => set_limits(limits, sessions),
        Some(Action::Thaw(_)) => Ok(counted(subjects.frozen.thaw())),
        Some(Action::Freeze(_)) | None => {
            Err("this version of vmlet-guest does not know the action".to_owned())
        }
    }
}

fn set_limits(wanted: &SetLimits, sessions: &Sessions) -> Result<Answer, String> {
    let found = sessions.kept(std::slice::from_ref(&wanted.keep));
    let session = found.iter().find(|session| session.exists());
    let session = session.ok_or_else(|| format!("no session {:?} runs", wanted.keep))?;
    let limited = session.limit(&wanted.limits);
    limited
        .map(|()| Answer::default())
        .map_err(|e| e.to_string())
}

fn counted(file_systems: usize) -> Answer {
    Answer {
        file_systems: u32::try_from(file_systems).unwrap_or(u32::MAX),
        ..Answer::default()
    }
}

fn set_time(nanoseconds: i64) -> Result<(), String> {
    let time = u64::try_from(nanoseconds).map_err(|_| "the time is before 1970".to_owned())?;
    let time = TimeSpec::from(Duration::from_nanos(time));
    clock_settime(ClockId::CLOCK_REALTIME, time).map_err(|e| format!("set the clock: {e}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use guestapi::{ReportFacts, SetTime, Thaw};

    use super::*;
    use crate::hooks::Hooks;

    fn performed(number: u64, action: Option<Action>, frozen: &Arc<Frozen>) -> Answer {
        let nowhere = PathBuf::from("/nonexistent");
        let subjects = Subjects {
            frozen,
            freezing: &Freezing {
                table: nowhere.clone(),
                watchdog: nowhere.clone(),
                record: nowhere.clone(),
                hooks: Hooks::below(nowhere),
            },
            sessions: &Sessions::default(),
        };
        let request = Request { number, action };
        perform(Work::begin(request, frozen), &subjects)
    }

    #[test]
    fn requests_have_answers_with_their_number() {
        let frozen = Arc::<Frozen>::default();
        let answer = performed(7, Some(Action::ReportFacts(ReportFacts {})), &frozen);
        assert_eq!((answer.number, answer.error.as_str()), (7, ""));
        assert!(answer.facts.is_some());
        let time = Some(Action::SetTime(SetTime { nanoseconds: -1 }));
        let refused = performed(8, time, &frozen);
        assert_eq!(refused.error, "the time is before 1970");
        let unknown = performed(9, None, &frozen);
        assert!(unknown.error.contains("does not know"), "{unknown:?}");
        let freeze = Some(Action::Freeze(guestapi::Freeze { seconds: 1 }));
        let refused = performed(10, freeze, &frozen);
        assert!(refused.error.contains("read the mounts"), "{refused:?}");
        let thawed = performed(11, Some(Action::Thaw(Thaw {})), &frozen);
        assert_eq!((thawed.number, thawed.error.as_str()), (11, ""));
        assert_eq!(thawed.file_systems, 0);
    }
}
