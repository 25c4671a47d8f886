//! Acceptance scenarios 1 to 48, as far as they are decided without an API server.
//!
//! Invariant: the number of a scenario is in the name of its test; 2 and 47 also need the
//! reconciler.
//! Failure: the name states which guarantee is broken.

mod always;
mod basics;
mod others;
mod rerun;
mod status;
