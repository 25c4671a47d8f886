//! What a machine boots from and finds its data on: its root disk, the node's devices, the seed
//! image.
//!
//! Invariant: a disk is complete before its container is CREATED, and is given back or removed when
//! its domain no longer exists.
//! Failure: a container whose disks cannot be had is not created; nothing is left then.

mod blocks;
pub(super) mod instance;
pub(super) mod overlay;
mod replace;
pub(super) mod seed;

pub(super) use blocks::serial;

#[cfg(test)]
mod tests;
