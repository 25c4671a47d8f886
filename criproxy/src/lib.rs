//! One CRI endpoint for kubelet over several CRI runtimes: a primary and any number of others.
//!
//! Invariant: the proxy does not change the bytes of a message of one backend; a backend that is
//! down never looks like one that has no pods.
//! Failure: the gRPC code of the reply; an error of one backend affects only the calls that need
//! it.
//!
//! # Example
//!
//! ```no_run
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! use criproxy::config::Config;
//! use service::settings::{Flags, layered};
//!
//! // Reads `/etc/vmlet/criproxy.toml`.
//! let config = layered::<Config>(&Flags::default(), std::env::vars_os())?.config;
//! criproxy::serve(config, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

mod backend;
pub mod check;
pub mod config;
#[doc(hidden)]
pub mod fuzzing;
mod methods;
mod metrics;
mod proxy;
mod routes;
mod server;
mod socket;
pub mod state;
pub mod wire;

pub use server::{Error, serve};
