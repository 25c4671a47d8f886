//! Router advertisements in the name of the pod's gateways (RFC 4861, 4191, 8106).
//!
//! Invariant: a guest that follows them has no address but by DHCPv6 (no prefix is autonomous), and
//! reaches each destination by the next hop of the lease: what a gateway routes is said with that
//! gateway's link-local address as source. It has no link-layer address; the guest requests it from
//! the gateway.
//! Failure: a route whose next hop has no known link-local address is left out, and so is what does
//! not fit the smallest packet of IPv6.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use super::SERVER_ADDRESS;
use super::lease::Lease;

/// Seconds for which routers, routes and name servers are good: the largest router lifetime (RFC
/// 8319), because a guest whose server is away for long is to keep its network.
pub(super) const LIFETIME: u16 = u16::MAX;
/// Lifetime of prefixes: a subnet stays on the link as long as the link is there.
const FOREVER: u32 = u32::MAX;
/// IPv6 does not run over links with smaller packets.
const SMALLEST_MTU: u32 = 1280;
/// Bytes of options: the smallest packet less IPv6 header and fixed part.
const ROOM: usize = 1280 - 40 - 16;

mod code {
    pub(super) const PREFIX: u8 = 3;
    pub(super) const MTU: u8 = 5;
    pub(super) const ROUTE: u8 = 24;
    pub(super) const SERVERS: u8 = 25;
    pub(super) const SEARCHES: u8 = 31;
}

/// An advertisement to be sent to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advert {
    /// The router that it comes from, as far as the guest knows.
    pub source: Ipv6Addr,
    /// Seconds for which that is a default router; zero when it is none.
    pub lifetime: u16,
    /// Encoded options.
    pub options: Vec<u8>,
}

/// What is to be said about `lease`; `routers` gives the link-local address of next hops.
///
/// The first advertisement describes the link. It comes from a default router if there is one, so
/// that a guest that receives just one receives the most important one.
#[must_use]
pub fn adverts(lease: &Lease, routers: &BTreeMap<Ipv6Addr, Ipv6Addr>) -> Vec<Advert> {
    let mut voices: Vec<Advert> = Vec::new();
    for hop in lease.hops() {
        let Some(source) = routers.get(&hop) else {
            continue;
        };
        let at = voices
            .iter()
            .position(|v| v.source == *source)
            .unwrap_or(voices.len());
        if at == voices.len() {
            voices.push(Advert {
                source: *source,
                lifetime: 0,
                options: Vec::new(),
            });
        }
        let Some(voice) = voices.get_mut(at) else {
            continue;
        };
        for (dst, _) in lease.routes.iter().filter(|(_, via)| *via == Some(hop)) {
            if dst.prefix_len() == 0 {
                voice.lifetime = LIFETIME;
            } else {
                add(&mut voice.options, &route(dst));
            }
        }
    }
    if voices.first().is_none_or(|first| first.lifetime == 0) {
        voices.insert(
            0,
            Advert {
                source: SERVER_ADDRESS,
                lifetime: 0,
                options: Vec::new(),
            },
        );
    }
    if let Some(first) = voices.first_mut() {
        let routes = std::mem::take(&mut first.options);
        for option in link(lease) {
            add(&mut first.options, &option);
        }
        for option in routes.chunks(ROUTE_SIZE) {
            add(&mut first.options, option);
        }
    }
    voices
}

/// Options about the link itself, in the order of their importance.
fn link(lease: &Lease) -> Vec<Vec<u8>> {
    let mut options: Vec<Vec<u8>> = lease.on_link().iter().map(prefix).collect();
    if lease.mtu >= SMALLEST_MTU {
        let mut option = vec![code::MTU, 1, 0, 0];
        option.extend(lease.mtu.to_be_bytes());
        options.push(option);
    }
    let servers: Vec<u8> = lease.dns.iter().flat_map(Ipv6Addr::octets).collect();
    let searches = lease.searches().concat();
    for (code, value) in [(code::SERVERS, servers), (code::SEARCHES, searches)] {
        options.extend(timed(code, &value).filter(|_| !value.is_empty()));
    }
    options
}

/// A prefix that is on the link, and not for choosing addresses.
fn prefix(net: &Ipv6Net) -> Vec<u8> {
    const ON_LINK: u8 = 0x80;
    let mut option = vec![code::PREFIX, 4, net.prefix_len(), ON_LINK];
    option.extend(FOREVER.to_be_bytes());
    option.extend(FOREVER.to_be_bytes());
    option.extend([0; 4]);
    option.extend(net.network().octets());
    option
}

/// All routes are written in the long form, so that they can be distinguished again.
const ROUTE_SIZE: usize = 24;

fn route(net: &Ipv6Net) -> Vec<u8> {
    let mut option = vec![code::ROUTE, 3, net.prefix_len(), 0];
    option.extend(u32::from(LIFETIME).to_be_bytes());
    option.extend(net.network().octets());
    option
}

/// Code, length in units of eight bytes, two reserved bytes, lifetime, padded value; `None` if too
/// long.
fn timed(code: u8, value: &[u8]) -> Option<Vec<u8>> {
    let units = 1 + value.len().div_ceil(8);
    let mut option = vec![code, u8::try_from(units).ok()?, 0, 0];
    option.extend(u32::from(LIFETIME).to_be_bytes());
    option.extend(value);
    option.resize(units * 8, 0);
    Some(option)
}

fn add(options: &mut Vec<u8>, option: &[u8]) {
    if options.len() + option.len() <= ROOM {
        options.extend(option);
    }
}

#[cfg(test)]
mod tests;
