//! The program.
//!
//! Invariant: a table of contents.
//! Failure: says what stopped it.

fn main() {}
