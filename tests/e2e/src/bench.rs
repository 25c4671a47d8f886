//! What the measuring programs share: the stack that is measured, and the events of its logs.
//!
//! Invariant: measures nothing itself.
//! Failure: what is missing in a stack or in a log is named.

mod events;
mod pod_cgroup;
mod stack;

pub use events::{field, stamp};
pub use pod_cgroup::PodCgroup;
pub use stack::{Booted, Calls, Stack, text};
