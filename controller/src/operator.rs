//! The status of the whole installation: the `Vmlet` object.
//!
//! [`adapters`] turn what Kubernetes knows of our parts into the four conditions of a component;
//! [`consolidate()`] makes five conditions, one word of health and the state of an upgrade from
//! them.
//!
//! Invariant: nothing is installed or repaired here; the process's own readiness never depends on
//! the result.
//! Failure: what cannot be looked at makes `ReconcileComplete` False, and everything else is still
//! looked at.

pub mod adapters;
pub mod assess;
mod component;
mod consolidate;
mod findings;
mod follow;
pub mod observe;
mod parts;
pub mod status;
mod task;
mod transitions;
mod wake;

pub use component::{Component, ComponentCondition, ComponentState, Conditions};
pub use consolidate::{
    External, Kind, Rules, Summary, Verdict, consolidate, gone, initial, invalid_request,
};
pub use follow::run;
pub use task::{Error, Operator};
