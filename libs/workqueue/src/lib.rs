//! A priority work queue.
//!
//! Invariant: a key is handed to at most one worker at a time, and is never lost.
//! Failure: none of its own; work that fails comes back after a growing delay.
