//! What makes rows, domains and files agree again: after a crash, a reboot of the node or a loss of
//! the connection.
//!
//! Invariant: what a request works on at the moment is left to it, and only domains of this
//! installation are touched.
//! Failure: the first error is returned, and the caller repeats the round.

mod collect;
mod reboot;
mod reconcile;
mod room;
mod stalled;

#[cfg(test)]
mod tests;
