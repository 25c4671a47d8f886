//! What the programs of this workspace share beside their own job.
//!
//! A module that needs other crates is a feature, and a program names those that it uses: a small
//! one does not pull in the rest.
//!
//! Invariant: nothing here knows a pod, a machine or Kubernetes, and no other crate of ours.
//! Failure: see each module.
//!
//! # Example
//!
//! ```
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use service::settings::{self, Settings, Timespan};
//!
//! /// Settings of a program.
//! #[derive(Default, Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields, default)]
//! struct Config {
//!     /// Timeout of a request.
//!     timeout: Timespan,
//! }
//!
//! impl Settings for Config {
//!     const PROGRAM: &'static str = "program";
//!     const PREFIX: &'static str = "PROGRAM";
//!     const FILE: &'static str = "/etc/program.toml";
//! }
//!
//! let effective = settings::layered::<Config>(&settings::Flags::default(), [])?;
//! assert_eq!(settings::show(&effective), "timeout = \"0s\"  # default\n");
//! # Ok::<(), settings::Error>(())
//! ```

#[cfg(feature = "admin-http")]
pub mod admin_http;
pub mod apparmor;
#[cfg(feature = "backoff")]
pub mod backoff;
#[cfg(feature = "boot-clock")]
pub mod boot_clock;
pub mod boot_id;
pub mod files;
#[cfg(feature = "listener")]
pub mod listener;
#[cfg(feature = "locks")]
pub mod locks;
#[cfg(feature = "open-files")]
pub mod open_files;
#[cfg(feature = "settings")]
pub mod settings;
#[cfg(feature = "signals")]
pub mod signals;
#[cfg(feature = "telemetry")]
pub mod telemetry;
