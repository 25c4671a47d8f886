//! Rules of the workspace, of its sources, of its metrics, of its systemd units and of its threat model.
//!
//! Invariant: only files are read.
//! Failure: the test names the crate or the unit.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod durable;
mod edges;
mod leaks;
mod logs;
mod metrics;
mod mounts;
mod policies;
mod sources;
mod threat_model;
mod units;
mod virtlet;
mod workspace;
