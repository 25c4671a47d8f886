//! The clock of the boot, which cannot be set.
//!
//! Invariant: it begins with the node, never goes back, and goes on while the node sleeps. Two
//! values are comparable only within one boot (see [`crate::boot_id`]).
//! Failure: none; every kernel that we run on has this clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since the node started.
#[must_use]
pub fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_start_of_the_node() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            text.split('.').next().unwrap().parse::<u64>().unwrap()
        };
        let before = uptime();
        let now = now().as_secs();
        assert!((before..=uptime()).contains(&now), "{now}");
    }
}
