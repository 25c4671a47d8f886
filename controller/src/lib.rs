//! The cluster controller: gives VM pods the life of a machine.
//!
//! Invariant: every decision is made from objects alone, so that a restart loses nothing.
//! Failure: a pass that fails is repeated; what a user must change shows as a condition.

pub mod app;
pub mod client;
pub mod config;
pub mod context;
pub mod events;
pub mod flow;
pub mod health;
pub mod intake;
pub mod lease;
pub mod metrics;
pub mod operator;
pub mod priority;
pub mod reconcile;
pub mod runner;
pub mod shared;
pub mod stores;
pub mod watch;
