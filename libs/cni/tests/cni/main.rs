//! Whole chains of plugins: shell scripts, which show what a plugin receives and what happens when
//! one misbehaves, and the reference plugins (`plugins`).
//!
//! Invariant: each test has its own directories and plugins; only those of `plugins` need root and
//! namespaces.
//! Failure: a plugin that hangs is killed by the runtime under test, whose deadline is short here.

// Helpers of tests fail the test by panicking.
#![allow(clippy::unwrap_used, clippy::panic)]

mod collect;
mod forward;
mod misbehave;
mod plugins;
mod repair;
mod scratch;
