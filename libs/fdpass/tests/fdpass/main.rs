//! Messages with descriptors over real sockets, with and without an async runtime.
//!
//! Invariant: no test counts the descriptors of the process: that one (`leaks`) is a program of its
//! own.
//! Failure: the test names the message that returned differently.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod asynchronous;
mod messages;
