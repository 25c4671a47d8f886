//! The program on a real kernel with real plugins, each test on a node that is a namespace.
//!
//! Invariant: one directory and a few namespaces per test, which go with it; peers are real
//! processes.
//! Failure: panics carry the program's log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests fail by panicking

mod full;
mod guards;
#[path = "../../../libs/netns/tests/netns/guest.rs"]
mod guest;
mod handoff;
mod hostile;
mod ipv6;
mod kinds;
mod known;
mod network;
mod node;
mod plugins;
mod recovery;
mod repairs;
mod routers;
mod routes;
mod seam;
#[path = "../../../libs/netns/tests/netns/speaks6.rs"]
mod speaks6;
