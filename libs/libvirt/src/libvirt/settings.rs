//! How long calls to libvirt may take, and how many there may be at once.
//!
//! Invariant: the defaults fit a libvirtd with its own defaults.
//! Failure: none.

use std::time::Duration;

/// Limits of the calls to libvirt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time for one call, from its turn.
    pub call_deadline: Duration,
    /// Time for starting a domain, from its turn.
    pub start_deadline: Duration,
    /// Time for a call that changes something to get its turn. Looks wait as long as they may take:
    /// a late one helps no caller.
    pub turn_deadline: Duration,
    /// Calls in progress at once of each of four kinds, each on a connection of its own, beside two
    /// for looks at all domains. Keep four times this and two below `max_workers` of libvirtd.conf
    /// (20 unless set).
    pub parallel: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            call_deadline: Duration::from_secs(30),
            start_deadline: Duration::from_secs(120),
            turn_deadline: Duration::from_secs(240),
            parallel: 4,
        }
    }
}
