//! Machines with the disk of a virtual machine, with seed images, and with mounts.
//!
//! Invariant: each test has a node of its own; disks, rows and images are real.
//! Failure: waits have a deadline; what a failed test made is removed with its scratch directory.

mod instance;
mod mounts;
mod replaced;
mod seed;
