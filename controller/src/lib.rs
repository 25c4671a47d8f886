//! Part of the cluster side.
//!
//! Invariant: none yet.
//! Failure: none yet.
