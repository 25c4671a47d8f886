//! Containers, each of which is a virtual machine.
//!
//! Invariant: a sandbox has at most one container that is not EXITED; EXITED is final.
//! Failure: a half-made, half-started or half-removed container is finished or undone by the next request
//! that meets it, or at start-up.

mod able;
pub mod accel;
mod blocks;
mod cable;
mod collect;
pub mod console;
mod consoles;
mod cpus;
mod create;
mod discard;
mod disk;
pub mod domain;
mod end;
mod error;
pub mod exec;
mod facts;
mod instance;
mod memory;
mod model;
mod paths;
mod placeholder;
mod power;
mod process;
mod reboot;
mod reconcile;
mod remove;
mod resize;
mod restart;
mod resume;
mod rows;
mod save;
mod seed;
mod service;
mod settings;
mod start;
pub mod state;
pub mod stats;
mod stop;
mod unsupported;
mod usage;
pub mod xml;

pub use error::{Error, Result};
pub use facts::Facts;
pub use model::{
    BlockDisk, Container, ContainerConfig, ContainerMetadata, Device, Exit, ImageSpec,
    LinuxResources, Mount, Spec,
};
pub use paths::Paths;
pub use service::{Containers, Parts};
pub use settings::{Settings, UnknownImage, Unsupported};
pub use unsupported::Unused;
pub use usage::DiskUsage;

#[cfg(test)]
mod tests;
