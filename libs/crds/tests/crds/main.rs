//! What `deploy` and `docs/kinds` say about the kinds.
//!
//! Invariant: only files are read.
//! Failure: the test names the file that is stale.

mod admission;
mod deploy;
