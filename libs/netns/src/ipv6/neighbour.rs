//! Neighbour discovery on the pod's link to the outside: questions in the guest's name, and notices
//! of neighbours and routers (RFC 4861).
//!
//! Invariant: a notice is valid as RFC 4861 demands in 6.1.2 and 7.1.2: it crossed no router, its
//! checksum is right, its options are whole. Nothing in it is believed beyond that: who a notice
//! concerns is the caller's decision.
//! Failure: what is malformed or of no interest reads as `None`.

use std::net::Ipv6Addr;

use etherparse::{
    Icmpv6Slice, IpNumber, LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};

use crate::mac::Mac;

const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Neighbour discovery must not have crossed a router.
const HOPS: u8 = 255;

mod kind {
    pub(super) const ROUTER_SOLICITATION: u8 = 133;
    pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
    pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

/// Bytes before the options, ICMP header included.
const ADVERTISEMENT: usize = 16;
const NEIGHBOUR: usize = 24;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;

/// What a neighbour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// An address is reached at a hardware address.
    Neighbour {
        /// The address.
        target: Ipv6Addr,
        /// Where it is.
        mac: Mac,
    },
    /// There is a router.
    Router {
        /// Its link-local address.
        address: Ipv6Addr,
        /// The sender of the frame.
        mac: Mac,
    },
}

/// Reads a frame.
#[must_use]
pub fn parse(frame: &[u8]) -> Option<Notice> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(LinkSlice::Ethernet2(link)) = &packet.link else {
        return None;
    };
    let Some(NetSlice::Ipv6(ip)) = &packet.net else {
        return None;
    };
    let Some(TransportSlice::Icmpv6(icmp)) = &packet.transport else {
        return None;
    };
    let header = ip.header();
    // No extension header: a fragment must not be believed (RFC 6980).
    let is_direct = header.next_header() == IpNumber::IPV6_ICMP && header.hop_limit() == HOPS;
    let is_whole = icmp.is_checksum_valid(header.source(), header.destination());
    let mac = Mac::new(link.source());
    if !is_direct || !is_whole || icmp.code_u8() != 0 || !mac.is_unicast() {
        return None;
    }
    match icmp.type_u8() {
        kind::ROUTER_ADVERTISEMENT => router(icmp, header.source_addr(), mac),
        kind::NEIGHBOUR_ADVERTISEMENT => neighbour(icmp, header.destination_addr(), mac),
        _ => None,
    }
}

fn router(icmp: &Icmpv6Slice<'_>, address: Ipv6Addr, mac: Mac) -> Option<Notice> {
    options(icmp.slice().get(ADVERTISEMENT..)?)?;
    address
        .is_unicast_link_local()
        .then_some(Notice::Router { address, mac })
}

fn neighbour(icmp: &Icmpv6Slice<'_>, to: Ipv6Addr, sender: Mac) -> Option<Notice> {
    const SOLICITED: u8 = 0x40;
    let [flags, ..] = icmp.bytes5to8();
    let message = icmp.slice();
    let target: [u8; 16] = message.get(8..NEIGHBOUR)?.try_into().ok()?;
    let target = Ipv6Addr::from(target);
    let given = options(message.get(NEIGHBOUR..)?)?;
    let is_odd = to.is_multicast() && flags & SOLICITED != 0;
    let mac = given.unwrap_or(sender);
    (!is_odd && !target.is_multicast() && mac.is_unicast())
        .then_some(Notice::Neighbour { target, mac })
}

/// The target's hardware address, if it is among the options; `None` if one of them is not whole.
#[allow(clippy::option_option)] // the absence of an option is no error
fn options(mut rest: &[u8]) -> Option<Option<Mac>> {
    let mut found = None;
    while let [code, units, ..] = *rest {
        let length = usize::from(units) * 8;
        if length == 0 {
            return None;
        }
        let (option, next) = rest.split_at_checked(length)?;
        if code == TARGET_ADDRESS
            && let [_, _, a, b, c, d, e, f] = *option
        {
            found = Some(Mac::new([a, b, c, d, e, f]));
        }
        rest = next;
    }
    rest.is_empty().then_some(found)
}

/// A frame of the NIC `mac` with the address `from` that asks where `target` is.
pub(super) fn where_is(target: Ipv6Addr, mac: Mac, from: Ipv6Addr) -> Option<Vec<u8>> {
    let [.., x, y, z] = target.octets();
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(x),
        u16::from_be_bytes([y, z]),
    );
    let option = [&[SOURCE_ADDRESS, 1][..], &mac.bytes()].concat();
    let body = [&target.octets()[..], &option].concat();
    ask(kind::NEIGHBOUR_SOLICITATION, mac, from, group, &body)
}

/// A frame of the NIC `mac` that asks for routers. It has no source address, so that the answer
/// goes to all, and no router notes an address of the guest that the guest may not have.
pub(super) fn routers(mac: Mac) -> Option<Vec<u8>> {
    ask(
        kind::ROUTER_SOLICITATION,
        mac,
        Ipv6Addr::UNSPECIFIED,
        ALL_ROUTERS,
        &[],
    )
}

fn ask(kind: u8, mac: Mac, from: Ipv6Addr, group: Ipv6Addr, body: &[u8]) -> Option<Vec<u8>> {
    let [.., a, b, c, d] = group.octets();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac.bytes(), [0x33, 0x33, a, b, c, d])
        .ipv6(from.octets(), group.octets(), HOPS)
        .icmpv6_raw(kind, 0, [0; 4])
        .write(&mut frame, body)
        .ok()?;
    Some(frame)
}

#[cfg(test)]
mod tests;
