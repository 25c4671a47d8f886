//! The rules of a machine's life, from outside.
//!
//! Invariant: every line of the decision table and every pure acceptance scenario has a test by its
//! number.
//! Failure: the message names the line or the scenario.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod build;
mod decisions;
mod edges;
mod groups;
mod pods;
mod properties;
mod records;
mod rules;
mod scenarios;
mod snapshots;
mod verbs;
