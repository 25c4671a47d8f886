//! The daemon's node API: messages, client and server of package `vmlet.node.v1`.
//!
//! Invariant: `proto/node.proto` is the contract; nothing here decides anything.
//! Failure: those of gRPC; the proto states which codes a call answers.
//!
//! # Example
//!
//! ```
//! # async fn print() -> Result<(), Box<dyn std::error::Error>> {
//! use nodeapi::v1::InfoRequest;
//! use nodeapi::{Deadlines, connect};
//!
//! let mut daemon = connect("unix:///run/vmlet/node/node.sock", Deadlines::default())?;
//! let info = daemon.info(InfoRequest {}).await?.into_inner();
//! println!("{}", info.version);
//! # Ok(())
//! # }
//! ```

pub mod client;

pub use client::{Deadlines, connect};

/// Generated from `proto/node.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::wildcard_imports,
    clippy::large_futures,
    reason = "generated"
)]
pub mod v1 {
    tonic::include_proto!("vmlet.node.v1");
}
