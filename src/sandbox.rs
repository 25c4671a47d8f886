//! Pod sandboxes: the network and the frame in which one virtual machine lives.
//!
//! Invariant: at most one sandbox exists per pod attempt; a READY sandbox has a network with an address.
//! Failure: a half-made or half-removed sandbox is finished or undone by the next request that meets it,
//! or at start-up.

mod error;
mod model;
mod network;
mod reboot;
mod reconcile;
mod rows;
mod service;
pub mod state;

pub use error::{Error, Result};
pub use model::{
    DnsConfig, Namespaces, PodMetadata, PortMapping, Protocol, Sandbox, SandboxConfig,
};
pub use service::{Guests, Sandboxes};

#[cfg(test)]
mod tests;
