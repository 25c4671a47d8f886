//! The CRI runtime daemon: pods as virtual machines.
//!
//! Invariant: modules meet in `app`; `cri` knows everything below it, nothing below knows `cri`.
//! Failure: `run` returns the first error that makes service impossible.

pub mod app;
mod causes;
pub mod clock;
pub mod config;
pub mod cri;
pub mod disk;
pub mod health;
pub mod images;
pub mod locks;
pub mod metadata;
pub mod node;
mod run;
pub mod sandbox;
pub mod tasks;
pub mod telemetry;
#[cfg(test)]
mod testbed;
pub mod vm;

pub use causes::one_line;
pub use run::{Error, run};
