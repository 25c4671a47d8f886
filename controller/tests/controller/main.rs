//! The controller's rules, line by line, and the status of an installation.
//!
//! Invariant: no API server is needed.
//! Failure: the test names the line of its table.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod adapters;
mod consolidation;
mod node_problems;
mod priority;
mod status;
