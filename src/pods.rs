//! Makes, stops and removes pod sandboxes: their rows, their networks, and with them the machines
//! in them.
//!
//! Invariant: at most one sandbox exists per pod attempt; a READY sandbox has a network with an
//! address.
//! Failure: a half-made or half-removed sandbox is finished or undone by the next request that
//! meets it, or at start-up.

mod error;
mod network;
mod reboot;
mod reconcile;
mod service;

pub use error::{Error, Result};
pub use service::Sandboxes;

#[cfg(test)]
mod tests;
