//! Whole chains with plugins that are shell scripts: what they are told, and what happens when they
//! misbehave.
//!
//! Invariant: each test has its own directories and plugins; none needs a right or touches a network.
//! Failure: a plugin that hangs is killed by the runtime under test, whose deadline is short here.

// Helpers of tests fail the test by panicking.
#![allow(clippy::unwrap_used, clippy::panic)]

mod collect;
mod forward;
mod misbehave;
mod repair;
mod scratch;
