//! How long calls to libvirt may take, and how many there may be at once.
//!
//! Invariant: the defaults fit a libvirtd with its own defaults.
//! Failure: none.

use std::time::Duration;

/// Limits of the calls to libvirt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time for one call.
    pub call_deadline: Duration,
    /// Time for starting a domain.
    pub start_deadline: Duration,
    /// Calls in progress at once of each of four kinds, each on a connection of its own. Keep four
    /// times this below `max_workers` of libvirtd.conf (20 unless set).
    pub parallel: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            call_deadline: Duration::from_secs(30),
            start_deadline: Duration::from_secs(120),
            parallel: 4,
        }
    }
}
