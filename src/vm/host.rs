//! What the node has for machines: its processor and accelerator, and the processes that machines
//! are.
//!
//! Invariant: nothing here changes a row, and nothing is assumed of the node that was not looked
//! up.
//! Failure: what is missing is absent or a sentence; see the modules.

pub(super) mod able;
pub mod accelerator;
pub(super) mod cpus;
pub(super) mod equipment;
pub(super) mod offer;
pub(super) mod process;
pub(super) mod uefi;
mod vmlet_guest;
