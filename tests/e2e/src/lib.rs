//! Real node stacks for tests: libvirtd, QEMU, CNI plugins, our programs, in a directory of their
//! own.
//!
//! Invariant: a test that passes leaves nothing behind; a stack that leaks fails its test.
//! Failure: every helper returns an error that states what was awaited and shows the end of the
//! logs.

mod agent;
mod anything;
mod attach;
mod audit;
pub mod bench;
mod bucket_server;
pub mod by_hand;
pub mod causes;
pub mod chaos;
mod cluster;
mod control;
mod controller;
pub mod conversation;
mod cri;
mod exec;
pub mod foreign;
mod guest;
mod held;
mod kept;
mod leftovers;
mod load;
mod loop_device;
pub mod machines;
mod manifests;
mod node;
mod node_server;
mod objects;
mod outcome;
mod poll;
mod power;
pub mod program;
mod reader;
pub mod samples;
mod secure;
mod side_by_side;
mod stack;
pub mod storage;
mod tally;
mod terminal;
mod verdicts;
mod versions;
mod wait;

pub use agent::{Agent, node_token};
pub use anything::anything;
pub use audit::Write;
pub use bucket_server::BucketServer;
pub use cluster::{Cluster, Options};
pub use control::{Control, Who};
pub use controller::{Controller, Line};
pub use cri::{Cri, PodOptions, await_text};
pub use guest::{Console, Guest, Tick, ticks};
pub use held::HeldServer;
pub use load::{Load, Quiet};
pub use loop_device::LoopDevice;
pub use manifests::{container_pod, example, service, vm_pod};
pub use node::{NodeApi, provision, uid};
pub use node_server::{Manner, NodeServer};
pub use objects::{Answer, Effect, Objects};
pub use outcome::always;
pub use poll::Poller;
pub use secure::{Authority, SecureServer};
#[doc(hidden)]
pub use side_by_side::{side_by_side, to_its_end};
pub use stack::{Endpoint, REGISTRY, REGISTRY_WITH_LOGIN, Stack, xtask};
pub use tally::{Mark, Spent};
pub use terminal::Terminal;
pub use verdicts::{Case, judge};
pub use versions::Versions;
pub use wait::{eventually, in_time, scaled};

pub use cri_proto::v1;
