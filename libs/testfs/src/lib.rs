//! File systems for tests: what a power cut leaves of files, and a directory that a process of the
//! test serves.
//!
//! Invariant: no program of a node depends on this crate.
//! Failure: an error names the step; what was mounted goes with its value.

mod ext4;
mod fuse;
mod strict;

pub use ext4::Ext4;
pub use fuse::{Observer, Opcode, Session, is};
pub use strict::StrictDisk;
