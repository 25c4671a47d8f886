//! How long calls to libvirt may take, and how many there may be at once.
//!
//! Invariant: the defaults fit a libvirtd with its own defaults.
//! Failure: none.

use std::time::Duration;

use super::lane;

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
    /// Calls in progress at once of most kinds, each on a connection of its own. Keep eleven times
    /// this and three below `max_workers` of libvirtd.conf (20 unless set): beyond it, calls that
    /// hang delay others.
    pub parallel: usize,
}

impl Settings {
    /// How many machines' memory may be saved or restored at once.
    pub const fn memory_calls(&self) -> usize {
        lane::half(self.parallel)
    }
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
