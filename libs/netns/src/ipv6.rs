//! Sends a guest the IPv6 addresses that CNI gave its pod: router advertisements and DHCPv6.
//!
//! The advertisements come in the name of the pod's gateways, so that the guest's default route
//! leads to them and not to us; the address itself comes by DHCPv6, so that the guest has that one
//! and no other (docs/adr/0008 weighs the alternatives).
//!
//! Invariant: the lease is the CNI result; no address is ever chosen here, and no prefix is offered
//! for the guest to choose one. The namespace's own IPv6 stays off: everything is sent and received
//! as frames, with guests on their taps, with gateways outside the node on the plugin's link.
//! Failure: if the server ends, guests keep routes for 18 hours and addresses for 24; new ones get
//! none.

mod advert;
mod dhcp;
mod frame;
mod gateway;
mod lease;
mod neighbour;
mod outside;
mod server;
mod socket;

/// What the checks of `tests/fuzz` reach besides the public functions.
#[doc(hidden)]
pub mod fuzzing {
    pub use super::frame::{Inbound, dhcp as dhcp_frame, parse as parse_frame};
    pub use super::neighbour::{Notice, parse as parse_notice};
}

pub use advert::{Advert, adverts};
pub use dhcp::{decode, encode, reply};
pub use gateway::Node;
pub use lease::Lease;
pub use server::{Error, Port, Server};

use std::net::Ipv6Addr;

use crate::mac::Mac;

/// Source of what is said in no gateway's name: DHCPv6, and advertisements for a pod without
/// gateway.
pub const SERVER_ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xfe01);
/// Source of every frame, and part of the server's DUID. Each tap is a link of its own, so all may
/// share it.
pub(crate) const SERVER_MAC: Mac = Mac::new([0x02, 0, 0xa9, 0xfe, 0xfe, 0x01]);

#[cfg(test)]
mod tests;
