//! The CRI runtime daemon: pods as virtual machines.
//!
//! Invariant: modules meet in `app`; `cri` knows everything below it, nothing below knows `cri`.
//! Failure: `run` returns the first error that makes service impossible.
//!
//! # Example
//!
//! ```no_run
//! use daemon::config::Config;
//!
//! daemon::run(&Config::default(), None)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod app;
pub mod backup;
pub mod block;
pub mod clock;
pub mod config;
pub mod cri;
pub mod disk;
pub mod events;
pub mod files;
pub mod foreign;
#[doc(hidden)]
pub mod fuzzing;
pub mod guest;
pub mod health;
mod helper;
pub mod image_tls;
pub mod images;
pub mod machine_socket;
pub mod metadata;
pub mod metrics;
pub mod network;
pub mod node;
pub mod node_settings;
pub mod platform;
pub mod pods;
mod run;
pub mod sandbox;
pub mod sources;
pub mod space;
mod steps;
pub mod streaming;
pub mod tasks;
pub mod telemetry;
#[cfg(test)]
mod testkit;
pub mod vm;

pub use run::{Error, run};
pub use service::locks;
pub use service::telemetry::one_line;
