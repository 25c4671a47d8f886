//! Decides the next step of one task: pure, from the state in the API server and in the daemon.
//!
//! ```text
//!  object     daemon knows it     next
//!  new        no                  run (or record why that cannot be)
//!  live       live                mirror the progress; pass a cancel on
//!  live       ended               record the end
//!  ended      yes                 forget it in the daemon
//!  ended      no                  delete the object when its time has come
//!  vanished   live                cancel
//!  vanished   ended               forget
//! ```
//!
//! Invariant: an end is recorded before it is forgotten; nothing is run whose object shows that it
//! ended; nothing is concluded from a list that is not complete.
//! Failure: none; a peer that is away means waiting.

use std::time::Duration;

use crds::{TaskState, VirtualMachineTaskStatus};
use jiff::Timestamp;
use nodeapi::v1::{RunTaskRequest, TaskStatus};
use service::backoff::Backoff;
use tokio::time::Instant;

use super::object::{Object, is_final};
use super::{report, request};

/// Progress below this many percent is not worth a write.
const STEP: u32 = 5;

/// Everything that is known of one task.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// As the API server has it; none when it has none.
    pub(super) object: Option<Object>,
    /// As the daemon has it; none when it has none.
    pub(super) reported: Option<TaskStatus>,
    /// The connection by which this was reported.
    pub(super) connection: u64,
    /// The last status that was written, which the watch may not have shown yet.
    pub(super) written: Option<VirtualMachineTaskStatus>,
    /// When that was.
    pub(super) written_at: Option<Instant>,
    /// The daemon will never run it, and why.
    pub(super) refused: Option<String>,
    /// The daemon of this connection was requested to stop it.
    pub(super) cancel_asked: bool,
    /// An effect is in progress.
    pub(super) busy: bool,
    /// Its place among all tasks; none until the list that contains it is complete.
    pub(super) place: Option<u64>,
    /// After failed effects.
    pub(super) backoff: Backoff,
}

/// What holds for all tasks.
#[derive(Debug, Clone, Copy)]
pub(super) struct World<'a> {
    /// The API server's list was complete once.
    pub(super) listed: bool,
    /// Kinds that the daemon offers, once it has listed all its tasks; none while it is
    /// unavailable.
    pub(super) daemon: Option<&'a [String]>,
    /// Shortest time between writes of progress.
    pub(super) progress: Duration,
    /// How long an ended task is kept.
    pub(super) keep: Duration,
    /// For waits.
    pub(super) now: Instant,
    /// For times that are stored.
    pub(super) wall: Timestamp,
}

/// One step.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Nothing until something happens.
    Idle,
    /// Nothing until then.
    At(Instant),
    /// Neither the daemon nor the API server has the task any more.
    Drop,
    /// Send it to the daemon.
    Run(Box<RunTaskRequest>),
    /// Request the daemon to stop it.
    Cancel,
    /// Write the status.
    Record(Box<VirtualMachineTaskStatus>),
    /// Let the daemon drop it.
    Forget,
    /// Delete the object.
    Delete,
}

/// The next step for a task.
pub(super) fn next(uid: &str, entry: &Entry, world: &World<'_>) -> Next {
    if entry.busy {
        return Next::Idle;
    }
    if let Some(until) = entry.backoff.not_before(world.now) {
        return Next::At(until);
    }
    match (&entry.object, &entry.reported) {
        (None, None) => Next::Drop,
        (None, Some(reported)) => orphan(entry, reported, world),
        (Some(object), _) if is_final(current(entry, object)) => ended(entry, object, world),
        (Some(object), None) => start(uid, entry, object, world),
        (Some(object), Some(reported)) => follow(entry, object, reported, world),
    }
}

/// Whether it is still to be sent to the daemon.
pub(super) fn is_unsent(entry: &Entry) -> bool {
    let Some(object) = &entry.object else {
        return false;
    };
    let is_wanted = !is_final(current(entry, object)) && !object.is_cancelled();
    is_wanted && object.spec.is_ok() && entry.reported.is_none() && entry.refused.is_none()
}

/// What the API server has by now.
fn current<'a>(entry: &'a Entry, object: &'a Object) -> &'a VirtualMachineTaskStatus {
    match &entry.written {
        Some(written) if !is_final(&object.status) => written,
        _ => &object.status,
    }
}

fn orphan(entry: &Entry, reported: &TaskStatus, world: &World<'_>) -> Next {
    if !world.listed || world.daemon.is_none() {
        Next::Idle
    } else if report::is_final(reported) {
        Next::Forget
    } else if entry.cancel_asked {
        Next::Idle
    } else {
        Next::Cancel
    }
}

fn ended(entry: &Entry, object: &Object, world: &World<'_>) -> Next {
    match &entry.reported {
        Some(_) if world.daemon.is_none() => Next::Idle,
        Some(reported) if report::is_final(reported) => Next::Forget,
        Some(_) if entry.cancel_asked => Next::Idle,
        // Another client ended the object: the work is no longer needed.
        Some(_) => Next::Cancel,
        None if !object.ours || object.going => Next::Idle,
        None => {
            let Some(completed) = &current(entry, object).completion_time else {
                return Next::Idle;
            };
            let age = world.wall.duration_since(completed.0);
            // One from the future has no age; it waits its full time.
            let age = Duration::try_from(age).unwrap_or_default();
            match world.keep.checked_sub(age) {
                Some(left) if !left.is_zero() => Next::At(world.now + left),
                _ => Next::Delete,
            }
        }
    }
}

fn start(uid: &str, entry: &Entry, object: &Object, world: &World<'_>) -> Next {
    let end =
        |state, message: &str| Next::Record(Box::new(report::ended(state, message, world.wall)));
    let spec = match &object.spec {
        Ok(spec) => spec,
        Err(e) => return end(TaskState::Error, &format!("this task cannot be read: {e}")),
    };
    if let Some(refused) = &entry.refused {
        return end(TaskState::Error, refused);
    }
    // While the daemon is away it may have the task.
    let Some(kinds) = world.daemon else {
        return Next::Idle;
    };
    if object.is_cancelled() {
        return end(TaskState::Cancelled, "cancelled before it began");
    }
    match request::for_task(uid, &object.namespace, spec, kinds) {
        Ok(request) => Next::Run(Box::new(request)),
        Err(sentence) => end(TaskState::Error, &sentence),
    }
}

fn follow(entry: &Entry, object: &Object, reported: &TaskStatus, world: &World<'_>) -> Next {
    let mut wanted = report::status(reported);
    if is_final(&wanted) {
        // The time of the end is what the object is deleted by.
        if wanted.completion_time.is_none() {
            let now = report::ended(TaskState::Success, "", world.wall);
            wanted.completion_time = now.completion_time;
        }
        return Next::Record(Box::new(wanted));
    }
    if object.is_cancelled() && !entry.cancel_asked && world.daemon.is_some() {
        return Next::Cancel;
    }
    let has = current(entry, object);
    if *has == wanted {
        return Next::Idle;
    }
    let same_but_progress = VirtualMachineTaskStatus {
        progress_percent: wanted.progress_percent,
        ..has.clone()
    };
    if same_but_progress != wanted {
        return Next::Record(Box::new(wanted));
    }
    if has.progress_percent.abs_diff(wanted.progress_percent) < STEP {
        return Next::Idle;
    }
    match entry.written_at.map(|at| at + world.progress) {
        Some(at) if at > world.now => Next::At(at),
        _ => Next::Record(Box::new(wanted)),
    }
}

#[cfg(test)]
mod tests;
