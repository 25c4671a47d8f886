//! Actions that are no commands: reports of facts and usage, the clock, and frozen file systems.
//!
//! Invariant: file systems that were frozen are thawed: by the host, after the time that it gave,
//! or when the agent loses its host.
//! Failure: a sentence for the host; a freeze that fails leaves nothing frozen.

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
    /// Their mount points, open, in the order of the freeze; and a number of the freeze.
    state: Mutex<(Vec<File>, u64)>,
    thawed: Condvar,
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
        let mut state = self.state();
        if !state.0.is_empty() {
            return Err("file systems are frozen already".to_owned());
        }
        // What is mounted last may lie on what is mounted before.
        for mount in mounts(&table).iter().rev() {
            if !mount.is_on_disk() || !mount.is_writable {
                continue;
            }
            match freeze(Path::new(&mount.point)) {
                Ok(Some(file)) => state.0.push(file),
                Ok(None) => {}
                Err(error) => {
                    thaw(&mut state.0);
                    return Err(format!("freeze {}: {error}", mount.point));
                }
            }
        }
        state.1 += 1;
        let (frozen, number) = (state.0.len(), state.1);
        drop(state);
        let this = Arc::clone(self);
        let time = Duration::from_secs(seconds.clamp(1, LONGEST_FREEZE).into());
        let begun = thread::Builder::new().spawn(move || this.thaw_after(number, time));
        if let Err(error) = begun {
            self.thaw();
            return Err(format!("start the thread that thaws: {error}"));
        }
        Ok(frozen)
    }

    /// Thaws what is frozen; returns how many were.
    pub(crate) fn thaw(&self) -> usize {
        let thawed = thaw(&mut self.state().0);
        self.thawed.notify_all();
        thawed
    }

    fn thaw_after(&self, number: u64, time: Duration) {
        let is_frozen = |state: &mut (Vec<File>, u64)| !state.0.is_empty() && state.1 == number;
        let waited = self
            .thawed
            .wait_timeout_while(self.state(), time, is_frozen);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_frozen(&mut state) {
            thaw(&mut state.0);
        }
    }

    fn state(&self) -> MutexGuard<'_, (Vec<File>, u64)> {
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
}
