//! Nodes whose daemon, boot or connection ended at a bad moment.
//!
//! Invariant: each test has a node of its own; disks, rows, images and consoles are real.
//! Failure: waits have a deadline; what a failed test made is removed with its scratch directory.

mod collect;
mod reboot;
mod reconcile;
mod stalled;
