//! Containers that are processes of one machine.
//!
//! The pod's first container makes the pod machine: a container that clients do not see, which
//! boots the image. A container without a command is the machine itself. `vmlet-guest` runs each container's command in it, and keeps the session while
//! the daemon is away.
//!
//! ```text
//! CreateContainer ─► pod machine (once) + row ─► StartContainer ─► kept session ─► CRI log
//! ```
//!
//! Invariant: a process runs only while the pod machine does; each byte of its output is in its log
//! once; it has ended when its exit code is recorded.
//! Failure: a guest without `vmlet-guest`, or with one that is too old, fails the start.

mod create;
mod error;
mod follow;
mod limits;
mod live;
mod log;
mod recover;
mod seccomp;
mod start;
mod stop;
/// Writes a position for the fixtures of later versions.
#[cfg(test)]
pub(crate) fn write_position(log: &std::path::Path, saved: &std::path::Path) {
    drop(log::Log::open(log, saved).unwrap());
}

#[cfg(test)]
mod tests;

pub use create::Process;
pub(super) use error::PodMachineError;
pub(super) use live::Processes;
pub use live::{Attached, Piece};
pub use seccomp::{Error as SeccompError, Profile};
