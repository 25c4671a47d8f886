//! Pod sandboxes as records.
//!
//! Invariant: plain values and their rows; `pods` makes, stops and removes them.
//! Failure: a row that cannot be decoded stops the start of the daemon.

mod addresses;
mod model;
mod rows;
pub mod state;

pub use model::{
    DnsConfig, Namespaces, PROCESS_HANDLER, PodMetadata, PortMapping, Protocol, Sandbox,
    SandboxConfig,
};
