//! Writes the results of a pass.
//!
//! Invariant: [`patch`] alone writes to the machine, [`snapshot`] to its snapshots, and only what differs
//! from what was read.
//! Failure: a conflict repeats the pass.

pub(super) mod patch;
pub(super) mod snapshot;
pub(super) mod status;
