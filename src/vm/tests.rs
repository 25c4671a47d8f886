//! The machines of a node whose hypervisor and networks only keep state.
//!
//! Invariant: each test has a node of its own; disks, rows, images and consoles are real.
//! Failure: waits have a deadline; what a failed test made goes with its scratch directory.

mod cable;
mod collect;
mod create;
mod discard;
mod exec;
mod instance;
mod life;
mod memory;
mod reboot;
mod reconcile;
mod resize;
mod restart;
mod seed;
mod start;
mod stats;
mod stop;
mod storm;
