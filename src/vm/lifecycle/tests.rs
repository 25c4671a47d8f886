//! The machines of a node whose hypervisor and networks only keep state, from their creation to
//! their removal.
//!
//! Invariant: each test has a node of its own; disks, rows, images and consoles are real.
//! Failure: waits have a deadline; what a failed test made is removed with its scratch directory.

mod create;
mod deadlines;
mod life;
mod other_image;
mod read_only;
mod start;
mod stop;
mod storm;
