//! Guests that are restarted, and guests whose memory is saved, discarded or resumed at other
//! addresses.
//!
//! Invariant: each test has a node of its own; disks, rows and files of memory are real.
//! Failure: waits have a deadline; what a failed test made is removed with its scratch directory.

mod cable;
mod discard;
mod pull;
mod restart;
