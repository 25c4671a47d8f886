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

use super::model::{Container, ContainerConfig};
use super::service::Containers;
use super::state::Phase;
use crate::platform::Platform;

/// How long a container is kept from lists for a client that gave up. kubelet repeats its requests
/// after some ten seconds.
const KEPT: Duration = Duration::from_secs(2 * 60);
/// kubelet's directories for the termination logs of a pod's containers.
const TERMINATION_LOGS: &str = "/containers/";

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

    /// Whether this request made the container, and no client has the answer.
    pub(super) fn is_repeated(&self, row: &Container, config: &ContainerConfig) -> bool {
        let was_answered = matches!(self.answers.all().get(&row.id), Some(Answer::Sent));
        !was_answered && comparable(&row.spec.config) == comparable(config)
    }

    /// Whether the container is kept from lists for a client that may come back.
    pub(super) fn is_kept_back(&self, row: &Container) -> bool {
        row.phase == Phase::Created
            && match self.answers.all().get(&row.id) {
                Some(Answer::Due(since)) => since.elapsed() < KEPT,
                Some(Answer::Sent) | None => false,
            }
    }

    pub(super) fn forget_answer(&self, id: &ContainerId) {
        self.answers.all().remove(id);
    }
}

/// What a client that repeats its request sends again: each try of kubelet has a termination log of
/// its own on the node.
fn comparable(config: &ContainerConfig) -> ContainerConfig {
    let mut config = config.clone();
    for mount in &mut config.mounts {
        if mount.host_path.contains(TERMINATION_LOGS) {
            mount.host_path.clear();
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::model::Mount;

    #[test]
    fn another_termination_log_makes_no_other_request() {
        let with = |host: &str| ContainerConfig {
            mounts: vec![Mount {
                container_path: "/dev/termination-log".to_owned(),
                host_path: format!("/var/lib/kubelet/pods/1/{host}"),
                ..Mount::default()
            }],
            ..ContainerConfig::default()
        };
        let first = with("containers/vm/1a2b3c4d");
        let again = with("containers/vm/0badcafe");
        assert_ne!(first, again);
        assert_eq!(comparable(&first), comparable(&again));
        let other = with("volumes/kubernetes.io~empty-dir/a");
        assert_ne!(comparable(&first), comparable(&other));
    }
}
