//! The installer on nodes that are folders of files, one for each platform.
//!
//! Invariant: nothing outside of a test's own folder is read or changed; the program, the files, the health page
//! and the call of CRI are real, the service manager is a script that keeps its state in files.
//! Failure: the test shows the files that differ, or what the program has printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod administrator;
mod chroot;
mod crashes;
mod failures;
mod life;
mod node;
mod servers;
