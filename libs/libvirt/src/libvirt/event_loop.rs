//! libvirt's event loop: one thread for the whole process.
//!
//! Invariant: it runs before the first connection opens, and until the process ends; without it
//! neither events nor keep-alive answers are read.
//! Failure: the thread cannot be started, then no connection is opened and the next attempt tries
//! again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Pause after an error, so that a lasting one does not take a whole core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

static RUNNING: Mutex<bool> = Mutex::new(false);

/// Makes sure that the loop runs. The error is a sentence.
pub(super) fn ensure() -> Result<(), String> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if *running {
        return Ok(());
    }
    virt::event::event_register_default_impl().map_err(|e| e.message().to_owned())?;
    std::thread::Builder::new()
        .name("libvirt-events".to_owned())
        .spawn(run)
        .map_err(|e| format!("cannot start the event thread: {e}"))?;
    *running = true;
    Ok(())
}

fn run() {
    loop {
        if let Err(error) = virt::event::event_run_default_impl() {
            tracing::error!(error = %error, "libvirt event loop failed");
            std::thread::park_timeout(PAUSE_AFTER_ERROR);
        }
    }
}
