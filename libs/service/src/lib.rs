//! What the programs of this workspace share beside their own job.
//!
//! A module that needs other crates is a feature, and a program names those that it uses: a small
//! one does not pull in the rest.
//!
//! Invariant: nothing here knows a pod, a machine or Kubernetes, and no other crate of ours.
//! Failure: each module says what it does.

#[cfg(feature = "admin-http")]
pub mod admin_http;
#[cfg(feature = "backoff")]
pub mod backoff;
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
