//! The cluster controller: manages the life cycle of virtual machines that run as pods.
//!
//! Invariant: every decision is made from objects alone, so that a restart loses nothing.
//! Failure: a pass that fails is repeated; what a user must change shows as a condition.
//!
//! # Example
//!
//! ```
//! use controller::config::Config;
//! use service::settings::Settings;
//!
//! let config = Config::default();
//! assert!(config.check().is_ok());
//! assert_eq!(config.create_slots(), 6);
//! ```

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
pub mod node_configs;
pub mod operator;
pub mod priority;
pub mod reconcile;
pub mod runner;
pub mod shared;
pub mod stores;
pub mod watch;
