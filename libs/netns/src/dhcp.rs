//! Sends a guest by DHCPv4 the address that CNI gave its pod.
//!
//! Invariant: the lease is the CNI result; the server never chooses an address, and answers no
//! client but the NIC that the lease names.
//! Failure: if the server ends, running guests keep their lease until it expires (24 h); new ones
//! get none.

mod lease;
mod packet;
mod server;

pub use lease::Lease;
pub(crate) use lease::{domain, is_host_name};
pub use packet::{decode, encode, reply};
pub use server::{Error, Server};

use std::net::Ipv4Addr;

/// The bridge's own address: server identifier and source of every answer.
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 254, 1);

#[cfg(test)]
mod tests;
