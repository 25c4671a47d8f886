//! The rules of a machine's life, from outside.
//!
//! Invariant: every line of the decision table and every pure acceptance scenario has a test by its number.
//! Failure: the message names the line or the scenario.

mod build;
mod decisions;
mod scenarios;
