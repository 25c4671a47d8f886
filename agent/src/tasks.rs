//! Runs the VirtualMachineTasks of this node: what the API server wants and what the daemon knows
//! flow together here, one step per task at a time.
//!
//! Invariant: all state is rebuilt from both sides at each start and after each loss; one effect
//! per task is in progress at most.
//! Failure: an effect that fails is repeated with growing pauses; other tasks do not wait for it.

mod decide;
mod effects;
mod engine;
mod object;
mod owner;
mod report;
pub(crate) mod request;
mod turns;

pub(crate) use engine::{Engine, Limits};

/// Who writes our fields.
pub(crate) const FIELD_MANAGER: &str = "vmlet-agent";
