//! The hypervisor's seam: the same behaviour from a real libvirtd and from the fake.
//!
//! Invariant: every libvirtd is private to its test.
//! Failure: the test names the call that behaves differently.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod contract;
mod daemon;
mod driver;
mod fake;
mod memory;
mod merge;
mod pull;
mod switch;
