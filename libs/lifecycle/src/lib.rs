//! What a virtual machine should do next.
//!
//! Invariant: pure functions; no clock, no I/O.
//! Failure: none; a combination that makes no sense is an answer of its own.
