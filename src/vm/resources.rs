//! What machines may use, what they have used, and what happened where that was too much.
//!
//! Invariant: figures come from libvirt as a whole, from the kernel and from files, and
//! not from a guest or a single domain.
//! Failure: a figure that cannot be had is absent; a change that a machine cannot make is refused.

mod catch_up;
pub mod details;
mod facts;
mod file_size;
mod fit;
mod memory;
mod resize;
mod room;
mod size;
pub mod stats;
mod translations;
mod usage;

pub(in crate::vm) use catch_up::{CatchUps, want_size_of_pod};
pub use facts::Facts;
pub(in crate::vm) use file_size::file_size;
pub(in crate::vm) use resize::merged;
pub(in crate::vm) use room::room;
pub(in crate::vm) use translations::translations;
pub use usage::DiskUsage;

#[cfg(test)]
mod tests;
