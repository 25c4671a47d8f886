//! The queue: its vectors, its properties against a model, its runner, and real concurrency.
//!
//! Invariant: only `stress` uses real time, and asserts nothing about it.
//! Failure: the test names the vector, or proptest the smallest history.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod dispatches;
mod properties;
mod quiet;
mod runner;
mod shared;
mod stress;
mod vectors;
