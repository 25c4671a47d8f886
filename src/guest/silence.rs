//! Finds agents that do not answer any more.
//!
//! An agent that was killed while it ran a command sends no end of it, and a guest whose new agent
//! could not announce itself does not either. So an agent that is in use is probed: whatever it
//! sends is an answer.
//!
//! Invariant: the time without an answer begins with a probe, never with the last use, and any
//! message ends it.
//! Failure: none; [`Silence::is_over`] says when the connection is of no use any more.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long an agent may leave probes without an answer while its guest runs. A guest on an
/// overloaded node answers within seconds.
const LONGEST: Duration = Duration::from_secs(300);

/// Most probes without an answer. One may be lost with the agent that it was sent to.
const UNANSWERED: u32 = 16;

/// What is known about the answers of an agent.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// It did not answer a request in time, and has sent nothing since.
    is_doubtful: AtomicBool,
    /// The first probe since its last message.
    probed: Mutex<Option<Instant>>,
    /// Probes that were sent since its last message.
    unanswered: AtomicU32,
}

impl Silence {
    /// The agent did not answer a request in time.
    pub(super) fn doubt(&self) {
        self.is_doubtful.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Ordering::Relaxed)
    }

    /// The agent has sent something.
    pub(super) fn end(&self) {
        self.is_doubtful.store(false, Ordering::Relaxed);
        self.unanswered.store(0, Ordering::Relaxed);
        *self.probed() = None;
    }

    /// Whether one more probe is sent: a guest that is paused for days reads them all when it runs.
    pub(super) fn takes_probe(&self) -> bool {
        self.unanswered.fetch_add(1, Ordering::Relaxed) < UNANSWERED
    }

    /// The agent is probed; true when it has not answered the probe before.
    pub(super) fn probe(&self) -> bool {
        let mut probed = self.probed();
        let is_silent = probed.is_some();
        probed.get_or_insert_with(Instant::now);
        is_silent
    }

    /// The guest could not answer: its time begins with the next probe.
    pub(super) fn excuse(&self) {
        *self.probed() = None;
    }

    /// Whether the agent has had all the time that it gets.
    pub(super) fn is_over(&self) -> bool {
        self.probed()
            .is_some_and(|since| since.elapsed() >= LONGEST)
    }

    fn probed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.probed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_agent_begins_with_a_probe_and_ends_with_its_answer() {
        let silence = Silence::default();
        tokio::time::advance(LONGEST * 2).await;
        assert!(!silence.probe(), "it had nothing to answer");
        assert!(!silence.is_over());
        tokio::time::advance(LONGEST / 2).await;
        assert!(silence.probe());
        silence.end();
        assert!(!silence.probe(), "it has answered");
        tokio::time::advance(LONGEST).await;
        assert!(silence.probe() && silence.is_over());
        silence.excuse();
        assert!(!silence.is_over(), "its guest was paused");
    }

    #[test]
    fn a_guest_that_is_paused_for_days_has_a_few_probes_to_read() {
        let silence = Silence::default();
        let mut sent = 0;
        for _ in 0..10_000 {
            silence.probe();
            sent += u32::from(silence.takes_probe());
            silence.excuse();
        }
        assert_eq!(sent, UNANSWERED);
        silence.end();
        assert!(silence.takes_probe());
    }
}
