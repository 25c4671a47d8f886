//! Continues in the background with changes of machines that run.
//!
//! Invariant: one task per machine, and it holds nothing between two attempts: neither a stop nor
//! another change waits for its guest. What is wanted is in the row until the guest has it, so that
//! the task may end with the process at any instant.
//! Failure: a guest that has not followed yet, for example because it still boots, gets the
//! request again while it runs: as soon as its agent connects, and at growing intervals. What the machine
//! cannot get as long as it runs is given up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use podspec::ContainerId;
use service::backoff::Backoff;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fit::{Change, LOOK, Missing, TIMEOUT};
use super::size::{has_room, size};
use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// Longest time between two attempts.
const LONGEST: Duration = Duration::from_secs(30);

/// The tasks, each with what begins its next attempt.
#[derive(Debug, Default)]
pub(in crate::vm) struct CatchUps(Mutex<HashMap<ContainerId, Arc<Notify>>>);

impl CatchUps {
    /// `None` when there is a task, which makes its next attempt now.
    fn begin(&self, id: &ContainerId) -> Option<Arc<Notify>> {
        let mut all = self.lock();
        if let Some(due) = all.get(id) {
            due.notify_one();
            return None;
        }
        Some(Arc::clone(all.entry(id.clone()).or_default()))
    }

    fn end(&self, id: &ContainerId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContainerId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Platform> Containers<P> {
    /// Continues with a change that was cut short, or that a machine is to get once its guest can
    /// follow; a task that does so already looks again.
    pub(in crate::vm) fn catch_up(self: &Arc<Self>, id: &ContainerId) {
        if !self.parts.table.get(id).is_some_and(|row| is_due(&row)) {
            return;
        }
        if let Some(due) = self.catch_ups.begin(id) {
            // No task that a shutdown waits for: it may last as long as the machine.
            tokio::spawn(continue_change(Arc::downgrade(self), id.clone(), due));
        }
    }

    /// Repeats what a guest forgets when it boots again: the virtual CPUs that it took off line.
    pub(in crate::vm) async fn booted_again(self: &Arc<Self>, row: &Container) {
        if !has_spare_vcpus(row) || row.wanted.is_some() {
            return;
        }
        if !matches!(self.is_emulated(row.domain()).await, Ok(true)) {
            return;
        }
        {
            let _turn = self.change_lock(&row.id).await;
            let want = |row: &mut Container| {
                if row.wanted.is_none() {
                    row.wanted = Some(row.resources().clone());
                }
            };
            if let Err(e) = self.parts.table.change(&row.id, Phase::Running, want).await {
                tracing::debug!(container = %row.id, error = crate::one_line(&e), "size not repeated");
            }
        }
        self.catch_up(&row.id);
    }

    /// One attempt; returns why it has to be repeated, if so.
    async fn attempt(&self, id: &ContainerId) -> Result<Option<String>> {
        let _turn = self.change_lock(id).await;
        let Some(row) = self.parts.table.get(id).filter(|row| is_due(row)) else {
            return Ok(None);
        };
        let Some(after) = row.wanted.clone() else {
            return Ok(None);
        };
        let before = row.resources();
        let mut done = Ok(());
        if has_room(&row.spec.machine) {
            let from = size(&row.spec, before);
            let to = size(&row.spec, &after);
            let mut change = Change::new(&row, from, to);
            match self.while_running(id, self.request(&mut change)).await {
                Ok(None) => {}
                Ok(Some(Missing {
                    reason, is_final, ..
                })) if !is_final => return Ok(Some(reason)),
                Ok(Some(missing)) => done = Err(missing.refuse(id)),
                Err(Error::Phase { .. } | Error::NoContainer(_)) => return Ok(None),
                Err(e) => done = Err(e),
            }
        }
        if done.is_ok() {
            done = self.apply(&row, before, &after).await;
        }
        faultpoint::point("resize.applied");
        match self.conclude(&row, after, done, None).await {
            Ok(()) | Err(Error::NoContainer(_)) => Ok(None),
            Err(e) if e.is_transient() => Ok(Some(crate::one_line(&e))),
            Err(e) => Err(e),
        }
    }
}

/// Attempts until nothing is wanted, or the machine or the service ends.
async fn continue_change<P: Platform>(
    this: Weak<Containers<P>>,
    id: ContainerId,
    due: Arc<Notify>,
) {
    let begun = Instant::now();
    let mut pauses = Backoff::new(LOOK, LONGEST);
    let mut is_logged = false;
    while let Some(containers) = this.upgrade() {
        let attempt = containers.attempt(&id).await;
        let reason = match attempt {
            Ok(Some(reason)) => reason,
            other => {
                if let Err(e) = other {
                    let error = crate::one_line(&e);
                    tracing::warn!(container = %id, error, "resources not changed");
                }
                containers.catch_ups.end(&id);
                // Something may have become wanted before this task had ended.
                containers.catch_up(&id);
                return;
            }
        };
        drop(containers);
        if !is_logged && begun.elapsed() >= TIMEOUT {
            is_logged = true;
            tracing::warn!(container = %id, error = reason, "resources not changed yet");
        }
        let pause = pauses.failed(Instant::now());
        // A guest may connect its agent as often as it likes.
        tokio::time::sleep(LOOK).await;
        let _ = tokio::time::timeout(pause.saturating_sub(LOOK), due.notified()).await;
    }
}

/// Whether a running machine is to get other resources.
fn is_due(row: &Container) -> bool {
    row.phase == Phase::Running && row.boots() && row.wanted.is_some()
}

/// What a machine wants that does not begin as its pod requests: a resumed one begins as it was
/// saved, an emulated one with all virtual CPUs that it can have.
pub(in crate::vm) fn want_size_of_pod(row: &mut Container) {
    let resumes = row.spec.instance.restore && has_room(&row.spec.machine);
    if resumes || has_spare_vcpus(row) {
        row.wanted = Some(row.resources().clone());
    }
}

/// Whether a machine may have more virtual CPUs than it has.
fn has_spare_vcpus(row: &Container) -> bool {
    let most = row.spec.machine.max_vcpus;
    most.is_some_and(|most| u16::from(most.get()) > row.size().vcpus)
}
