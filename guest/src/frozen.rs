//! File systems that are frozen for the host.
//!
//! ```text
//! begin ─► open the mount points ─► start the watchdog ─► programs of the guest ─► freeze each ─► thaw ─► programs
//!   └───────────── the time of the freeze, after which a thread of the agent thaws ─────────────────┘
//! ```
//!
//! Invariant: file systems that were frozen are thawed: by the host, after the time that it gave, when the agent
//! loses its host, and when it is killed: by its [watchdog](Watchdog), or at its next start. A thaw ends a freeze
//! that has begun, however far it is. A [program](hooks) that got `freeze` gets `thaw` afterwards, whatever became
//! of the freeze; of an agent that was killed from the next one.
//! Failure: a sentence for the host; a freeze that fails, or that a thaw meets, leaves nothing frozen. So does a program
//! that fails, or takes more than three quarters of the time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use guestapi::LONGEST_FREEZE;
use nix::errno::Errno;
use nix::unistd::syncfs;

mod left;

pub(crate) use left::thaw_left;

use crate::hooks::{self, Hooks};
use crate::mounts::{self, FileSystem, Point};
use crate::sys;
use crate::watchdog::Watchdog;

/// What a freeze uses of its guest.
#[derive(Debug, Clone)]
pub(crate) struct Freezing {
    /// The kernel's table of mounts.
    pub(crate) table: PathBuf,
    /// The program of the watchdog.
    pub(crate) watchdog: PathBuf,
    /// Names the mount points while they are frozen.
    pub(crate) record: PathBuf,
    /// What runs before and after.
    pub(crate) hooks: Hooks,
}

/// The file systems that are frozen.
#[derive(Debug)]
pub(crate) struct Frozen {
    state: Mutex<State>,
    thawed: Condvar,
    /// Thaws one.
    thaw: fn(&File) -> nix::Result<()>,
}

/// Locked for a look or a thaw only: a disk may keep a freeze waiting.
#[derive(Debug, Default)]
struct State {
    /// In the order of the freeze.
    points: Vec<Point>,
    /// The freeze of this number goes on; one ends as soon as `number` is not its own any more.
    is_freezing: bool,
    /// The freeze whose thread may be in a call of the kernel, or whose watchdog may still thaw: also one that has
    /// ended.
    busy: Option<u64>,
    /// Changes with each freeze and each thaw.
    number: u64,
}

/// A freeze that has begun: a thaw that is requested from now on ends it.
#[derive(Debug)]
pub(crate) struct Freeze {
    frozen: Arc<Frozen>,
    number: u64,
    time: Duration,
}

/// What is there before anything is frozen.
#[derive(Debug)]
struct Prepared {
    points: Vec<Point>,
    watchdog: Option<Watchdog>,
    /// Programs that run before the freeze, in this order.
    hooks: Vec<PathBuf>,
}

/// What is to be ended when everything is thawed.
#[derive(Debug)]
enum Begun {
    Watchdog(Watchdog),
    /// A program that got `freeze`.
    Hook(PathBuf),
    /// No further program gets it.
    Prepared,
}

impl Default for Frozen {
    fn default() -> Self {
        Self::thawing_by(sys::thaw)
    }
}

impl Frozen {
    fn thawing_by(thaw: fn(&File) -> nix::Result<()>) -> Self {
        Self {
            state: Mutex::default(),
            thawed: Condvar::new(),
            thaw,
        }
    }

    /// Begins a freeze for so many seconds at most; there is one at a time. It waits for one that a thaw has ended.
    pub(crate) fn begin(self: &Arc<Self>, seconds: u32) -> Result<Freeze, String> {
        let mut state = self.state();
        if state.is_freezing || !state.points.is_empty() {
            return Err("file systems are frozen already".to_owned());
        }
        state.is_freezing = true;
        state.number += 1;
        Ok(Freeze {
            frozen: Arc::clone(self),
            number: state.number,
            time: Duration::from_secs(seconds.clamp(1, LONGEST_FREEZE).into()),
        })
    }

    /// Thaws what is frozen; returns how many file systems were until now. A freeze that goes on ends.
    pub(crate) fn thaw(&self) -> usize {
        self.thaw_in(&mut self.state())
    }

    fn thaw_in(&self, state: &mut State) -> usize {
        state.number += 1;
        state.is_freezing = false;
        self.thawed.notify_all();
        let points = state.points.drain(..).rev();
        // Another program may have thawed one before.
        points
            .filter(|point| (self.thaw)(&point.file).is_ok())
            .count()
    }

    /// Thaws when the time of a freeze is over and the host has not.
    fn thaw_after(&self, number: u64, time: Duration) {
        let is_frozen = |state: &mut State| {
            state.number == number && (state.is_freezing || !state.points.is_empty())
        };
        let waited = self
            .thawed
            .wait_timeout_while(self.state(), time, is_frozen);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_frozen(&mut state) {
            self.thaw_in(&mut state);
        }
    }

    /// A freeze is over, with its watchdog: the next one may go on.
    fn end(&self, number: u64, record: &Path) {
        let mut state = self.state();
        if state.busy == Some(number) {
            // Without a file system that was to be frozen there is none.
            let _ = fs::remove_file(record);
            state.busy = None;
        }
        self.thawed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Freeze {
    /// Freezes all writable file systems on disks; returns how many are frozen.
    pub(crate) fn freeze(self, of: &Freezing) -> Result<usize, String> {
        let time = self.time;
        self.freeze_each(&of.record, || prepare(of, time), freeze)
    }

    /// Freezes each of what is prepared by `freeze`, all or none.
    fn freeze_each(
        self,
        record: &Path,
        prepare: impl FnOnce() -> Result<Prepared, String>,
        freeze: impl FnMut(&Point) -> Result<bool, String>,
    ) -> Result<usize, String> {
        let (started, begun) = mpsc::channel();
        let until = Instant::now() + self.time * 3 / 4;
        let frozen = Arc::clone(&self.frozen);
        let number = self.number;
        let time = self.time;
        let record = record.to_owned();
        let guard = move || {
            frozen.thaw_after(number, time);
            end(&begun);
            frozen.end(number, &record);
        };
        // It runs before anything is frozen, so that nothing stays so when a disk does not answer.
        let guarded = thread::Builder::new().spawn(guard);
        let outcome = match guarded {
            Ok(_) => self
                .await_turn()
                .and_then(|()| prepare())
                .and_then(|prepared| self.freeze_all(prepared, until, &started, freeze)),
            Err(error) => Err(format!("failed to start the thread that thaws: {error}")),
        };
        if outcome.is_err() && self.is_current() {
            self.frozen.thaw();
        }
        drop(self);
        // Its watchdog, its record and its programs stay until it is over.
        drop(started);
        outcome
    }

    fn freeze_all(
        &self,
        prepared: Prepared,
        until: Instant,
        started: &Sender<Begun>,
        mut freeze: impl FnMut(&Point) -> Result<bool, String>,
    ) -> Result<usize, String> {
        let watchdog = prepared.watchdog.map(Begun::Watchdog);
        watchdog.map_or(Ok(()), |watchdog| note(started, watchdog))?;
        let ran = self.run_hooks(prepared.hooks, until, started);
        note(started, Begun::Prepared)?;
        ran?;
        for point in prepared.points {
            if !self.is_current() {
                return Err(thawed());
            }
            let is_frozen = freeze(&point)
                .map_err(|error| format!("failed to freeze {}: {error}", point.path))?;
            let mut state = self.frozen.state();
            if state.number != self.number {
                if is_frozen {
                    // Another program may have thawed it.
                    let _ = (self.frozen.thaw)(&point.file);
                }
                return Err(thawed());
            }
            if is_frozen {
                state.points.push(point);
            }
        }
        let state = self.frozen.state();
        if state.number != self.number {
            return Err(thawed());
        }
        Ok(state.points.len())
    }

    fn run_hooks(
        &self,
        all: Vec<PathBuf>,
        until: Instant,
        started: &Sender<Begun>,
    ) -> Result<(), String> {
        for hook in all {
            if !self.is_current() {
                return Err(thawed());
            }
            note(started, Begun::Hook(hook.clone()))?;
            hooks::freeze(&hook, until, || self.is_current())?;
        }
        Ok(())
    }

    /// Waits for an earlier freeze that has ended: a disk may keep one of its calls.
    fn await_turn(&self) -> Result<(), String> {
        let is_held = |state: &mut State| state.busy.is_some() && state.number == self.number;
        let free = self.frozen.thawed.wait_while(self.frozen.state(), is_held);
        let mut state = free.unwrap_or_else(PoisonError::into_inner);
        if state.number != self.number {
            return Err(thawed());
        }
        state.busy = Some(self.number);
        Ok(())
    }

    /// Whether no thaw has come since it began.
    fn is_current(&self) -> bool {
        self.frozen.state().number == self.number
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        let mut state = self.frozen.state();
        if state.number == self.number {
            state.is_freezing = false;
        }
        self.frozen.thawed.notify_all();
    }
}

fn thawed() -> String {
    "file systems were thawed during the freeze".to_owned()
}

/// Records what the thread that thaws is to end.
fn note(started: &Sender<Begun>, begun: Begun) -> Result<(), String> {
    let noted = started.send(begun);
    noted.map_err(|_| "the thread that thaws has ended".to_owned())
}

/// Runs the programs of the guest again, and dismisses the watchdog of the freeze when that has ended: a disk may delay a
/// call of it beyond the thaw.
fn end(begun: &Receiver<Begun>) {
    let mut hooks = Vec::new();
    let mut watchdogs = Vec::new();
    for one in begun {
        match one {
            Begun::Watchdog(watchdog) => watchdogs.push(watchdog),
            Begun::Hook(program) => hooks.push(program),
            Begun::Prepared => break,
        }
    }
    hooks::thaw(&hooks);
    begun.iter().for_each(drop);
    watchdogs.into_iter().for_each(Watchdog::dismiss);
}

/// Opens the file systems of the guest, and starts what thaws them when this process cannot.
fn prepare(of: &Freezing, time: Duration) -> Result<Prepared, String> {
    let table = fs::read(&of.table);
    let table = table.map_err(|e| format!("failed to read the mounts: {e}"))?;
    let all = mounts::writable(&String::from_utf8_lossy(&table));
    let points: Vec<_> = all.iter().map(FileSystem::open).collect::<Result<_, _>>()?;
    if points.is_empty() {
        return Ok(Prepared {
            points,
            watchdog: None,
            hooks: Vec::new(),
        });
    }
    let watchdog = Watchdog::start(&of.watchdog, &points, time);
    let watchdog = watchdog.map_err(|e| format!("failed to start the watchdog: {e}"))?;
    let watchdog = Some(watchdog);
    left::record(&of.record, &points);
    let hooks = of.hooks.programs();
    Ok(Prepared {
        points,
        watchdog,
        hooks,
    })
}

/// False for a file system that cannot be frozen: its data are written, at least.
fn freeze(point: &Point) -> Result<bool, String> {
    match sys::freeze(&point.file) {
        Ok(()) => Ok(true),
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY) => {
            let written = syncfs(&point.file);
            written.map(|()| false).map_err(|error| error.to_string())
        }
        // It could thaw at any time.
        Err(Errno::EBUSY) => Err("another program has frozen it".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
