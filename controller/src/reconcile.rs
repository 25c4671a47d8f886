//! A pass over one object.
//!
//! Invariant: a pass may be repeated at any time, also one that was broken off half way.
//! Failure: see [`crate::flow`].

pub(crate) mod answers;
pub mod backup;
pub mod backup_schedule;
pub(crate) mod cron;
pub mod group;
pub mod image;
pub(crate) mod node_tasks;
pub mod replica_set;
pub mod vm;
