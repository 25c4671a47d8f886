//! Actions that are no commands: reports of facts and usage, the clock, and frozen file systems.
//!
//! Invariant: file systems that were frozen are thawed: by the host, after the time that it gave,
//! or when the agent loses its host.
//! Failure: a sentence for the host; a freeze that fails, or that a thaw meets, leaves nothing frozen.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use guestapi::request::Action;
use guestapi::{Answer, LONGEST_FREEZE, Request, SetLimits};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};

use crate::facts::{facts, mounts};
use crate::sessions::Sessions;
use crate::sys;
use crate::usage::usage;

/// The file systems that are frozen.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    state: Mutex<State>,
    thawed: Condvar,
}

/// Locked for a look or a thaw only: a disk may keep a freeze waiting.
#[derive(Debug, Default)]
struct State {
    /// Mount points, open, in the order of the freeze.
    points: Vec<File>,
    /// A freeze goes on; it ends as soon as `number` is not its own any more.
    is_freezing: bool,
    /// Changes with each freeze and each thaw.
    number: u64,
}

impl State {
    /// Thaws what is frozen; returns how many were.
    fn thaw(&mut self) -> usize {
        self.number += 1;
        thaw(&mut self.points)
    }
}

/// Does what is requested.
pub(crate) fn perform(request: &Request, frozen: &Arc<Frozen>, sessions: &Sessions) -> Answer {
    let done = match &request.action {
        Some(Action::ReportFacts(_)) => Ok(Answer {
            facts: Some(facts()),
            ..Answer::default()
        }),
        Some(Action::SetTime(time)) => set_time(time.nanoseconds).map(|()| Answer::default()),
        Some(Action::Freeze(freeze)) => frozen.freeze(freeze.seconds).map(counted),
        Some(Action::ReportUsage(which)) => Ok(Answer {
            usage: usage(&sessions.kept(&which.keep)),
            ..Answer::default()
        }),
        Some(Action::SetLimits(limits)) => set_limits(limits, sessions),
        Some(Action::Thaw(_)) => Ok(counted(frozen.thaw())),
        None => Err("this version of vmlet-guest does not know the action".to_owned()),
    };
    let answer = done.unwrap_or_else(|error| Answer {
        error,
        ..Answer::default()
    });
    Answer {
        number: request.number,
        ..answer
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

impl Frozen {
    /// Freezes all writable file systems on disks; returns how many are frozen.
    fn freeze(self: &Arc<Self>, seconds: u32) -> Result<usize, String> {
        let table = std::fs::read_to_string("/proc/self/mounts");
        let table = table.map_err(|e| format!("read the mounts: {e}"))?;
        // What is mounted last may lie on what is mounted before.
        let points: Vec<_> = mounts(&table)
            .iter()
            .rev()
            .filter(|mount| mount.is_on_disk() && mount.is_writable)
            .map(|mount| mount.point.clone())
            .collect();
        let time = Duration::from_secs(seconds.clamp(1, LONGEST_FREEZE).into());
        self.freeze_each(&points, time, freeze)
    }

    /// Freezes each of `points` by `freeze`, all or none, and thaws them after `time`.
    fn freeze_each(
        self: &Arc<Self>,
        points: &[String],
        time: Duration,
        freeze: impl FnMut(&Path) -> Result<Option<File>, String>,
    ) -> Result<usize, String> {
        let number = {
            let mut state = self.state();
            if state.is_freezing || !state.points.is_empty() {
                return Err("file systems are frozen already".to_owned());
            }
            state.is_freezing = true;
            state.number += 1;
            state.number
        };
        let this = Arc::clone(self);
        // It runs before anything is frozen, so that nothing stays so when a disk does not answer.
        let begun = thread::Builder::new().spawn(move || this.thaw_after(number, time));
        let frozen = match begun {
            Ok(_) => self.freeze_all(number, points, freeze),
            Err(error) => Err(format!("start the thread that thaws: {error}")),
        };
        let mut state = self.state();
        state.is_freezing = false;
        if frozen.is_err() && state.number == number {
            state.thaw();
        }
        drop(state);
        self.thawed.notify_all();
        frozen
    }

    fn freeze_all(
        &self,
        number: u64,
        points: &[String],
        mut freeze: impl FnMut(&Path) -> Result<Option<File>, String>,
    ) -> Result<usize, String> {
        let thawed = || "file systems were thawed during the freeze".to_owned();
        for point in points {
            let frozen =
                freeze(Path::new(point)).map_err(|error| format!("freeze {point}: {error}"))?;
            let mut state = self.state();
            if state.number != number {
                thaw(&mut frozen.into_iter().collect());
                return Err(thawed());
            }
            state.points.extend(frozen);
        }
        let state = self.state();
        if state.number != number {
            return Err(thawed());
        }
        Ok(state.points.len())
    }

    /// Thaws what is frozen; returns how many were. A freeze that goes on ends.
    pub(crate) fn thaw(&self) -> usize {
        let thawed = self.state().thaw();
        self.thawed.notify_all();
        thawed
    }

    fn thaw_after(&self, number: u64, time: Duration) {
        let is_frozen = |state: &mut State| {
            state.number == number && (state.is_freezing || !state.points.is_empty())
        };
        let waited = self
            .thawed
            .wait_timeout_while(self.state(), time, is_frozen);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_frozen(&mut state) {
            state.thaw();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None` for a file system that cannot be frozen, or is frozen by another program.
fn freeze(point: &Path) -> Result<Option<File>, String> {
    let folder = File::open(point).map_err(|e| e.to_string())?;
    match sys::freeze(&folder) {
        Ok(()) => Ok(Some(folder)),
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EBUSY) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn thaw(frozen: &mut Vec<File>) -> usize {
    let count = frozen.len();
    for folder in frozen.drain(..).rev() {
        // Another program may have thawed it.
        let _ = sys::thaw(&folder);
    }
    count
}

#[cfg(test)]
mod tests {
    use guestapi::{ReportFacts, SetTime};

    use super::*;

    #[test]
    fn requests_have_answers_with_their_number() {
        let request = |number, action| Request { number, action };
        let (frozen, sessions) = (Arc::<Frozen>::default(), Sessions::default());
        let facts = request(7, Some(Action::ReportFacts(ReportFacts {})));
        let answer = perform(&facts, &frozen, &sessions);
        assert_eq!((answer.number, answer.error.as_str()), (7, ""));
        assert!(answer.facts.is_some());
        let time = request(8, Some(Action::SetTime(SetTime { nanoseconds: -1 })));
        assert_eq!(
            perform(&time, &frozen, &sessions).error,
            "the time is before 1970"
        );
        assert!(
            perform(&request(9, None), &frozen, &sessions)
                .error
                .contains("does not know")
        );
        assert_eq!(frozen.thaw(), 0);
    }

    fn frozen_directory() -> Option<File> {
        // Nothing is frozen: a thaw of it fails, which does not matter.
        Some(File::open("/proc").unwrap())
    }

    #[test]
    fn a_thaw_does_not_wait_for_a_freeze_and_ends_it() {
        let frozen = Arc::<Frozen>::default();
        let points = ["/a", "/b", "/c"].map(str::to_owned);
        let hour = Duration::from_secs(3600);
        let mut tried = 0;
        let outcome = frozen.freeze_each(&points, hour, |_| {
            tried += 1;
            // The host reconnects while the second file system is being frozen.
            if tried == 2 {
                assert_eq!(frozen.thaw(), 1);
            }
            Ok(frozen_directory())
        });
        assert!(outcome.unwrap_err().contains("thawed during"));
        assert_eq!((tried, frozen.thaw()), (2, 0));

        let again = frozen.freeze_each(&points, hour, |_| Ok(frozen_directory()));
        assert_eq!(again, Ok(3));
        let twice = frozen.freeze_each(&points, hour, |_| Ok(frozen_directory()));
        assert!(twice.unwrap_err().contains("already"));
        assert_eq!(frozen.thaw(), 3);
    }

    #[test]
    fn a_freeze_that_fails_leaves_nothing_frozen() {
        let frozen = Arc::<Frozen>::default();
        let points = ["/a", "/b"].map(str::to_owned);
        let hour = Duration::from_secs(3600);
        let outcome = frozen.freeze_each(&points, hour, |point| {
            if point.ends_with("b") {
                return Err("refused".to_owned());
            }
            Ok(frozen_directory())
        });
        assert_eq!(outcome.unwrap_err(), "freeze /b: refused");
        assert_eq!(frozen.thaw(), 0);
    }
}
