//! The configuration of one NIC.
//!
//! Invariant: a subnet is on the link only if the lease specifies it by a prefix or a route without
//! next hop.
//! Failure: names that are none are left out, never cut.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use crate::dhcp::{domain, is_host_name};
use crate::mac::Mac;

/// The configuration of one NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The NIC; no other client gets an answer.
    pub mac: Mac,
    /// Its addresses with the prefixes of their subnets.
    pub addresses: Vec<Ipv6Net>,
    /// Its routes, the default route among them; without a next hop the destination is on the link.
    pub routes: Vec<(Ipv6Net, Option<Ipv6Addr>)>,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Name servers.
    pub dns: Vec<Ipv6Addr>,
    /// Domains to search; names that are none are left out.
    pub searches: Vec<String>,
    /// Host name to offer to those who ask.
    pub hostname: Option<String>,
}

impl Lease {
    /// Whether `address` is one of the NIC's.
    pub(super) fn has(&self, address: Ipv6Addr) -> bool {
        self.addresses.iter().any(|own| own.addr() == address)
    }

    /// Destinations that need no router.
    pub(super) fn on_link(&self) -> Vec<Ipv6Net> {
        let subnets = self.addresses.iter().map(Ipv6Net::trunc);
        let routes = self.routes.iter().filter(|(_, hop)| hop.is_none());
        let mut nets: Vec<Ipv6Net> = Vec::new();
        for net in subnets.chain(routes.map(|(dst, _)| dst.trunc())) {
            // The guest's own address is no neighbour, and everything is no subnet.
            let own = net.prefix_len() == 128 && self.has(net.addr());
            if !own && net.prefix_len() > 0 && !nets.contains(&net) {
                nets.push(net);
            }
        }
        nets
    }

    /// Next hops, each once, those of default routes first.
    pub(super) fn hops(&self) -> Vec<Ipv6Addr> {
        let mut hops = Vec::new();
        for default in [true, false] {
            for (dst, hop) in &self.routes {
                if let Some(hop) = hop
                    && (dst.prefix_len() == 0) == default
                    && !hops.contains(hop)
                {
                    hops.push(*hop);
                }
            }
        }
        hops
    }

    /// The search list in the form of RFC 1035 without compression, one entry per name.
    pub(super) fn searches(&self) -> Vec<Vec<u8>> {
        self.searches
            .iter()
            .filter_map(|s| domain(s))
            .map(|name| wire(name.iter(), true))
            .collect()
    }

    /// The host name as RFC 4704 wants a partial name: without the root's length.
    pub(super) fn hostname(&self) -> Option<Vec<u8>> {
        let name = self.hostname.as_ref().filter(|name| is_host_name(name))?;
        Some(wire(name.split('.').map(str::as_bytes), false))
    }
}

/// Labels of at most 63 bytes each, as checked by the callers' filters.
fn wire<'a>(labels: impl Iterator<Item = &'a [u8]>, whole: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in labels {
        bytes.extend(u8::try_from(label.len()).ok());
        bytes.extend(label);
    }
    if whole {
        bytes.push(0);
    }
    bytes
}
