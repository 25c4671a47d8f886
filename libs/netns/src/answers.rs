//! Counts answers to guests that asked for their addresses.
//!
//! Invariant: counts are of the whole process and never decrease.
//! Failure: none.

use std::sync::atomic::{AtomicU64, Ordering};

static VERSION_4: AtomicU64 = AtomicU64::new(0);
static VERSION_6: AtomicU64 = AtomicU64::new(0);

/// How many answers this process has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    /// By DHCP.
    pub dhcp4: u64,
    /// By DHCPv6.
    pub dhcp6: u64,
}

/// The answers so far.
pub fn answers() -> Answers {
    Answers {
        dhcp4: VERSION_4.load(Ordering::Relaxed),
        dhcp6: VERSION_6.load(Ordering::Relaxed),
    }
}

pub(crate) fn sent_4() {
    VERSION_4.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn sent_6() {
    VERSION_6.fetch_add(1, Ordering::Relaxed);
}
