//! Figures, limits and changes of resources of machines whose hypervisor only keeps state.
//!
//! Invariant: each test has a node of its own; disks, rows and cgroup files are real.
//! Failure: waits have a deadline; what a failed test made is removed with its scratch directory.

mod catch_up;
mod memory;
mod resize;
mod room;
mod stats;
