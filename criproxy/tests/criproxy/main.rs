//! The proxy between real clients and runtimes that exist for the test.
//!
//! Invariant: every runtime, socket and directory belongs to one test.
//! Failure: the test names the rule of docs/criproxy.md that does not hold.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod agent;
mod decoding;
mod environment;
mod events;
mod fake;
mod faults;
mod images;
mod lists;
mod node;
mod program;
mod raw;
mod restart;
mod routing;
mod service;
mod traces;
mod wire;
