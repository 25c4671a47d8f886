//! A pod's network between a guest and its neighbours, in namespaces that each test makes.
//!
//! Invariant: a namespace belongs to one test and is removed with its directory.
//! Failure: every wait has a deadline and names what did not come.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod flood;
mod frames;
mod guest;
mod ipv6;
mod links;
mod outside;
mod speaks6;
mod spoofing;
mod traffic;
mod wire;
