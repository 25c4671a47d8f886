//! The signals by which a program is requested to end: SIGTERM and SIGINT.
//!
//! Invariant: once [`Ending`] exists the signals do not end the process any more; one that arrives
//! before it is waited for is kept.
//! Failure: the kernel's error when there are no handlers to be had; none later.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The handlers of both signals.
#[derive(Debug)]
pub struct Ending {
    terminate: Signal,
    interrupt: Signal,
}

impl Ending {
    /// Installs the handlers; within a runtime.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn watch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first signal of either kind.
    pub async fn received(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::signal::{Signal, raise};

    use super::Ending;

    #[tokio::test]
    async fn a_signal_that_arrives_before_the_wait_is_kept() {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let ending = Ending::watch().unwrap();
            raise(signal).unwrap();
            let received = tokio::time::timeout(Duration::from_secs(60), ending.received());
            assert!(received.await.is_ok(), "{signal}");
        }
    }
}
