//! Ethernet frames from and to the guest.
//!
//! Invariant: only frames of the lease's NIC with a plausible source are read. Checksums of what
//! comes are not looked at: between guest and tap they are often left to be filled in by hardware.
//! Failure: what is malformed or of no interest reads as `None`.

use std::net::Ipv6Addr;

use etherparse::icmpv6::RouterAdvertisementHeader;
use etherparse::{Icmpv6Type, LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

use super::advert::Advert;
use super::{SERVER_ADDRESS, SERVER_MAC};
use crate::mac::Mac;

const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// Neighbour discovery must not have crossed a router.
const HOPS: u8 = 255;

/// What a guest may want.
#[derive(Debug, PartialEq, Eq)]
pub enum Inbound<'a> {
    /// It looks for routers.
    Solicitation,
    /// It speaks DHCPv6.
    Dhcp {
        /// Its link-local address.
        from: Ipv6Addr,
        /// Payload of the datagram.
        payload: &'a [u8],
    },
}

/// Reads a frame of the NIC `mac`.
#[must_use]
pub fn parse(frame: &[u8], mac: Mac) -> Option<Inbound<'_>> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(LinkSlice::Ethernet2(link)) = packet.link else {
        return None;
    };
    let Some(NetSlice::Ipv6(ip)) = packet.net else {
        return None;
    };
    if link.source() != mac.bytes() {
        return None;
    }
    let from = ip.header().source_addr();
    match packet.transport? {
        TransportSlice::Icmpv6(icmp) => {
            let solicits = icmp.icmp_type() == Icmpv6Type::RouterSolicitation;
            let plausible = from.is_unspecified() || from.is_unicast_link_local();
            (solicits && plausible && ip.header().hop_limit() == HOPS)
                .then_some(Inbound::Solicitation)
        }
        TransportSlice::Udp(udp) => (udp.destination_port() == SERVER_PORT
            && from.is_unicast_link_local())
        .then_some(Inbound::Dhcp {
            from,
            payload: udp.payload(),
        }),
        _ => None,
    }
}

/// A frame with an advertisement for all nodes on the link, that is: the guest.
pub(super) fn advertisement(advert: &Advert) -> Option<Vec<u8>> {
    let header = Icmpv6Type::RouterAdvertisement(RouterAdvertisementHeader {
        cur_hop_limit: 64,
        managed_address_config: true,
        other_config: true,
        router_lifetime: advert.lifetime,
    });
    // Reachable time and retransmission timer: unspecified.
    let payload = [&[0; 8][..], &advert.options].concat();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(SERVER_MAC.bytes(), ALL_NODES_MAC)
        .ipv6(advert.source.octets(), ALL_NODES.octets(), HOPS)
        .icmpv6(header)
        .write(&mut frame, &payload)
        .ok()?;
    Some(frame)
}

/// A frame with a DHCPv6 message for the client at `to`.
#[must_use]
pub fn dhcp(mac: Mac, to: Ipv6Addr, payload: &[u8]) -> Option<Vec<u8>> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(SERVER_MAC.bytes(), mac.bytes())
        .ipv6(SERVER_ADDRESS.octets(), to.octets(), 64)
        .udp(SERVER_PORT, CLIENT_PORT)
        .write(&mut frame, payload)
        .ok()?;
    Some(frame)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = Mac::new([0x0a, 0, 0, 0, 0, 7]);

    fn guest(from: &str, hops: u8) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
        let from: Ipv6Addr = from.parse().unwrap();
        PacketBuilder::ethernet2(MAC.bytes(), [0x33, 0x33, 0, 0, 0, 2]).ipv6(
            from.octets(),
            ALL_NODES.octets(),
            hops,
        )
    }

    fn solicitation(from: &str, hops: u8) -> Vec<u8> {
        let mut frame = Vec::new();
        guest(from, hops)
            .icmpv6(Icmpv6Type::RouterSolicitation)
            .write(&mut frame, &[])
            .unwrap();
        frame
    }

    #[test]
    fn a_solicitation_counts_when_it_comes_from_the_nic_and_over_no_router() {
        assert_eq!(
            parse(&solicitation("fe80::7", 255), MAC),
            Some(Inbound::Solicitation)
        );
        assert_eq!(
            parse(&solicitation("::", 255), MAC),
            Some(Inbound::Solicitation)
        );
        assert_eq!(parse(&solicitation("fe80::7", 64), MAC), None);
        assert_eq!(parse(&solicitation("fd00::7", 255), MAC), None);
        assert_eq!(parse(&solicitation("fe80::7", 255), Mac::new([2; 6])), None);
    }

    #[test]
    fn a_datagram_counts_when_it_is_for_the_port_of_servers() {
        let datagram = |port| {
            let mut frame = Vec::new();
            guest("fe80::7", 1)
                .udp(546, port)
                .write(&mut frame, b"xyz")
                .unwrap();
            frame
        };
        let from = "fe80::7".parse().unwrap();
        assert_eq!(
            parse(&datagram(547), MAC),
            Some(Inbound::Dhcp {
                from,
                payload: b"xyz"
            })
        );
        assert_eq!(parse(&datagram(53), MAC), None);
    }

    proptest! {
        #[test]
        fn no_frame_brings_the_server_down(
            mut frame in prop::collection::vec(any::<u8>(), 0..200),
            start in any::<bool>(),
            length in any::<u16>(),
        ) {
            if start {
                let mut head = solicitation("fe80::7", 255);
                head[18..20].copy_from_slice(&length.to_be_bytes());
                frame = [head, frame].concat();
            }
            let _ = parse(&frame, MAC);
        }
    }
}
