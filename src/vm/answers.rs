//! Creations by this daemon and whether their answer was sent, in memory.
//!
//! ```text
//!   begins ─► due ── returned to a caller that still waits ─► sent
//! ```
//!
//! Invariant: an answer is sent only when a caller that still lives has it: a client that gave up
//! and repeats its request gets the container that was made meanwhile. Until then lists do not show
//! it, so that kubelet, which would take it for a container that never started, makes no other
//! attempt. After a restart no creation counts as answered, and none as due.
//! Failure: none. A container whose client never comes back is shown after a while.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use podspec::ContainerId;
use tokio::time::Instant;

use super::model::Container;
use super::service::Containers;
use super::state::Phase;
use crate::platform::Platform;

/// How long a container is kept from lists for a client that gave up. kubelet repeats its requests
/// after some ten seconds.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// The answer to the creation of a container.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// No caller has it, as of this time.
    Due(Instant),
    Sent,
}

/// The answers of this daemon.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<HashMap<ContainerId, Answer>>);

impl Answers {
    fn all(&self) -> MutexGuard<'_, HashMap<ContainerId, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Platform> Containers<P> {
    /// The answer is due: before the row is there, and again when the container is made.
    pub(super) fn answer_is_due(&self, id: &ContainerId) {
        let due = Answer::Due(Instant::now());
        self.answers.all().insert(id.clone(), due);
    }

    /// A caller that still waits has the answer.
    pub(super) fn remember_answer(&self, id: &ContainerId) {
        self.answers.all().insert(id.clone(), Answer::Sent);
    }

    pub(super) fn was_answered(&self, id: &ContainerId) -> bool {
        matches!(self.answers.all().get(id), Some(Answer::Sent))
    }

    /// Whether the container is kept from lists for a client that may come back.
    pub(super) fn is_kept_back(&self, row: &Container) -> bool {
        row.phase == Phase::Created
            && match self.answers.all().get(&row.id) {
                Some(Answer::Due(since)) => since.elapsed() < PATIENCE,
                Some(Answer::Sent) | None => false,
            }
    }

    pub(super) fn forget_answer(&self, id: &ContainerId) {
        self.answers.all().remove(id);
    }
}
