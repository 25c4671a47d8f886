//! Numbered crash points: the first that this process passes is `installer.1`, and so on.
//!
//! Invariant: each place between two writes or calls has one, so that a test that arms number after
//! number kills the program everywhere.
//! Failure: none; without the feature `fault-injection` nothing happens.

use std::sync::atomic::{AtomicU32, Ordering};

static PASSED: AtomicU32 = AtomicU32::new(0);

/// Dies here if a test has armed this number.
pub(crate) fn point() {
    let number = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
    faultpoint::point(&format!("installer.{number}"));
}
