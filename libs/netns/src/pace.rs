//! What a guest may cost the servers that answer it.
//!
//! Invariant: each NIC has a pace of its own, so that one that floods its server delays no other;
//! what it repeats is logged once in a while.
//! Failure: none; what exceeds the socket's buffer is dropped by the kernel.

use std::time::Duration;

use tokio::time::Instant;

/// Between two frames of one guest; what comes meanwhile waits in the socket, up to its size.
pub(crate) const PAUSE_AFTER_FRAME: Duration = Duration::from_millis(5);
/// Least time between two warnings about one guest.
const QUIET: Duration = Duration::from_mins(1);

/// A warning that a guest can cause.
#[derive(Debug, Default)]
pub(crate) struct Warning {
    last: Option<Instant>,
}

impl Warning {
    /// Whether it is due: the last one was logged long enough ago.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= QUIET);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_is_due_once_a_minute() {
        let mut warning = Warning::default();
        assert!(warning.is_due());
        assert!(!warning.is_due());
        tokio::time::advance(QUIET).await;
        assert!(warning.is_due());
    }
}
