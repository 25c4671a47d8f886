//! Ethernet frames, byte by byte, as a hostile guest makes them.
//!
//! Invariant: what is not said to be wrong about a frame is right: lengths, and checksums where the
//! filter or a receiver could look at them.
//! Failure: none; a frame is only bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) type Bytes = Vec<u8>;
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

pub(crate) fn mac(text: &str) -> [u8; 6] {
    text.parse::<netns::Mac>().unwrap().bytes()
}

fn four(text: &str) -> [u8; 4] {
    text.parse::<Ipv4Addr>().unwrap().octets()
}

fn six(text: &str) -> [u8; 16] {
    text.parse::<Ipv6Addr>().unwrap().octets()
}

pub(crate) fn ether(from: [u8; 6], to: [u8; 6], kind: u16, body: &[u8]) -> Bytes {
    [&to[..], &from, &kind.to_be_bytes(), body].concat()
}

/// The body of an ARP packet for Ethernet and IPv4.
pub(crate) fn arp(operation: u16, sender: [u8; 6], sender_ip: &str, target_ip: &str) -> Bytes {
    let operation = operation.to_be_bytes();
    let head: &[u8] = &[0, 1, 8, 0, 6, 4];
    [
        head,
        &operation,
        &sender,
        &four(sender_ip),
        &[0; 6],
        &four(target_ip),
    ]
    .concat()
}

/// An IPv4 packet; `fragment` is the field with flags and offset.
pub(crate) fn ip4(from: &str, to: &str, protocol: u8, fragment: u16, body: &[u8]) -> Bytes {
    let length = u16::try_from(20 + body.len()).unwrap().to_be_bytes();
    let [f, g] = fragment.to_be_bytes();
    let mut header = [
        &[0x45, 0][..],
        &length,
        &[0, 7, f, g, 64, protocol, 0, 0],
        &four(from),
        &four(to),
    ]
    .concat();
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    [header, body.to_vec()].concat()
}

fn checksum(header: &[u8]) -> [u8; 2] {
    let words = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(!sum & 0xffff).unwrap().to_be_bytes()
}

pub(crate) fn ip6(from: &str, to: &str, next: u8, body: &[u8]) -> Bytes {
    ip6_hops(from, to, next, 255, body)
}

/// An IPv6 packet that may cross `hops` routers more.
pub(crate) fn ip6_hops(from: &str, to: &str, next: u8, hops: u8, body: &[u8]) -> Bytes {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [
        &[0x60, 0, 0, 0][..],
        &length,
        &[next, hops],
        &six(from),
        &six(to),
        body,
    ]
    .concat()
}

/// A datagram without a checksum.
pub(crate) fn udp(from: u16, to: u16, body: &[u8]) -> Bytes {
    let length = u16::try_from(8 + body.len()).unwrap().to_be_bytes();
    [
        &from.to_be_bytes()[..],
        &to.to_be_bytes(),
        &length,
        &[0, 0],
        body,
    ]
    .concat()
}

/// An ICMPv6 message about an address (the target of a solicitation, advertisement or redirect).
pub(crate) fn icmp6(kind: u8, target: &str) -> Bytes {
    [
        &[kind, 0, 0, 0, 0, 0, 0, 0][..],
        &six(target),
        &[1, 1, 2, 0, 0, 0, 0, 9],
    ]
    .concat()
}

/// An ICMPv6 message between these addresses, with its checksum.
pub(crate) fn icmp6_sum(from: &str, to: &str, message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let pseudo = [&six(from)[..], &six(to), &length, &[0, 0, 0, 58], message].concat();
    let [x, y] = checksum(&pseudo);
    [&message[..2], &[x, y], &message[4..]].concat()
}

/// A fragment header before `body`; the offset counts eights.
pub(crate) fn fragment6(next: u8, offset: u16, more: bool, body: &[u8]) -> Bytes {
    let place = (offset << 3 | u16::from(more)).to_be_bytes();
    [&[next, 0][..], &place, &[0, 0, 0, 1], body].concat()
}

/// A header with options for the destination, which are padding, before `body`.
pub(crate) fn options6(next: u8, body: &[u8]) -> Bytes {
    [&[next, 0, 1, 4, 0, 0, 0, 0][..], body].concat()
}
