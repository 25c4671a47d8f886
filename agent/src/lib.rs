//! The Kubernetes-facing half of a node: runs tasks through the daemon's node API, reports what is
//! known of guests and of the node, reads what guest data come from, brings image mappings.
//!
//! Invariant: nothing is kept on disk; what a restart must know is in the daemon or in the API
//! server.
//! Failure: while either of them is away, the rest continues and what was missed is done later.
//!
//! # Example
//!
//! ```no_run
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! use agent::config::Config;
//!
//! let config = Config {
//!     node: "n1".to_owned(),
//!     ..Config::default()
//! };
//! agent::run(config, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

mod announce;
pub mod config;
mod daemon;
mod emulation;
mod event;
mod facts;
mod health;
mod lease;
mod manifests;
mod mappings;
mod metrics;
mod node_configs;
mod objects;
mod orphans;
mod pulls;
mod run;
mod scale_down;
mod sources;
mod tasks;

pub use run::{Error, run};
