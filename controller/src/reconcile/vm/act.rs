//! Changes of the cluster: pods, tasks of nodes, power.
//!
//! Invariant: every effect can be repeated; none waits for a guest or a copy.
//! Failure: see each module.

pub(super) mod adopt;
pub(crate) mod backup;
pub(super) mod clone;
pub(super) mod config;
mod consumer;
pub(super) mod create;
pub(super) mod delete;
pub(super) mod effects;
pub(super) mod handover;
pub(super) mod identity;
mod in_place;
pub(super) mod left_behind;
pub(super) mod pod;
pub(super) mod power;
pub(super) mod probe;
pub(super) mod promotion;
pub(super) mod provision;
pub(super) mod revert;
pub(super) mod saved;
pub(super) mod schema;
pub(super) mod shorten_grace;
pub(super) mod slot;
pub(super) mod snapshot;
pub(super) mod tasks;
