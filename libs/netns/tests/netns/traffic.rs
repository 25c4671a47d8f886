//! What guests say: what they may, and what they may not.
//!
//! Invariant: the frames are those of a guest with the addresses here; each breaks one rule at
//! most.
//! Failure: none; the tables are only bytes.

use crate::frames::{BROADCAST, Bytes, arp, ether, fragment6, icmp6, ip4, ip6, mac, options6, udp};

pub(crate) const OWN: &str = "10.1.2.5";
pub(crate) const GATEWAY: &str = "10.1.2.1";
pub(crate) const OWN6: &str = "fd00:1::5";
pub(crate) const GATEWAY6: &str = "fd00:1::1";
const ROUTERS: &str = "ff02::2";
pub(crate) const NODES: &str = "ff02::1";

/// The link-local address that belongs to the guest's MAC address.
const LINK_LOCAL: &str = "fe80::aa:ff:fe00:5";

/// Frames that neighbours must receive.
pub(crate) fn honest(me: [u8; 6]) -> Vec<(&'static str, Bytes)> {
    let text = b"twelve bytes";
    let four = |to, kind, fragment, body: &[u8]| {
        ether(me, BROADCAST, 0x800, &ip4(OWN, to, kind, fragment, body))
    };
    let v6 = |from, to, next, body: &[u8]| {
        ether(
            me,
            mac("33:33:00:00:00:01"),
            0x86dd,
            &ip6(from, to, next, body),
        )
    };
    vec![
        (
            "ARP request",
            ether(me, BROADCAST, 0x806, &arp(1, me, OWN, GATEWAY)),
        ),
        (
            "ARP reply",
            ether(
                me,
                mac("02:00:00:00:00:77"),
                0x806,
                &arp(2, me, OWN, GATEWAY),
            ),
        ),
        (
            "ARP announcement",
            ether(me, BROADCAST, 0x806, &arp(1, me, OWN, OWN)),
        ),
        (
            "ARP probe",
            ether(me, BROADCAST, 0x806, &arp(1, me, "0.0.0.0", OWN)),
        ),
        ("UDP", four(GATEWAY, 17, 0, &udp(4000, 53, text))),
        (
            "UDP broadcast",
            four("255.255.255.255", 17, 0, &udp(4000, 4000, text)),
        ),
        (
            "UDP multicast",
            four("224.0.0.251", 17, 0, &udp(5353, 5353, text)),
        ),
        (
            "UDP first fragment",
            four(GATEWAY, 17, 0x2000, &udp(4000, 53, text)),
        ),
        ("UDP later fragment", four(GATEWAY, 17, 3, text)),
        ("TCP", four(GATEWAY, 6, 0, &[0; 20])),
        ("ICMP", four(GATEWAY, 1, 0, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])),
        ("tunnel", four(GATEWAY, 47, 0, &[0; 8])),
        ("UDPv6", v6(OWN6, GATEWAY6, 17, &udp(4000, 53, text))),
        (
            "UDPv6 link-local",
            v6(LINK_LOCAL, NODES, 17, &udp(5353, 5353, text)),
        ),
        (
            "UDPv6 first fragment",
            v6(
                OWN6,
                GATEWAY6,
                44,
                &fragment6(17, 0, true, &udp(4000, 53, text)),
            ),
        ),
        (
            "UDPv6 later fragment",
            v6(OWN6, GATEWAY6, 44, &fragment6(17, 9, false, text)),
        ),
        (
            "echo6 with options",
            v6(OWN6, GATEWAY6, 60, &options6(58, &icmp6(128, "::"))),
        ),
        (
            "echo6 later fragment",
            v6(OWN6, GATEWAY6, 44, &fragment6(58, 9, false, text)),
        ),
        ("TCPv6", v6(OWN6, GATEWAY6, 6, &[0; 20])),
        ("solicitation", v6(OWN6, NODES, 58, &icmp6(135, GATEWAY6))),
        ("probe", v6("::", NODES, 58, &icmp6(135, OWN6))),
        (
            "probe of its link-local",
            v6("::", NODES, 58, &icmp6(135, LINK_LOCAL)),
        ),
        ("advertisement", v6(OWN6, NODES, 58, &icmp6(136, OWN6))),
        (
            "advertisement of its link-local",
            v6(LINK_LOCAL, NODES, 58, &icmp6(136, LINK_LOCAL)),
        ),
        (
            "membership",
            v6("fe80::1234", "ff02::16", 58, &[143, 0, 0, 0, 0, 0, 0, 0]),
        ),
    ]
}

/// Frames that must reach no host.
#[allow(clippy::too_many_lines)] // a table
pub(crate) fn hostile(me: [u8; 6]) -> Vec<(&'static str, Bytes)> {
    let other = mac("02:00:00:00:00:66");
    let text = b"twelve bytes";
    let all = |kind, body: &[u8]| ether(me, BROADCAST, kind, body);
    let four = |from, kind, fragment, body: &[u8]| {
        all(0x800, &ip4(from, "255.255.255.255", kind, fragment, body))
    };
    let v6 = |from, to, next, body: &[u8]| {
        ether(
            me,
            mac("33:33:00:00:00:01"),
            0x86dd,
            &ip6(from, to, next, body),
        )
    };
    let fine = ip4(OWN, GATEWAY, 17, 0, &udp(4000, 53, text));
    let mut long_header = fine.clone();
    long_header[0] = 0x4f;
    let mut wrong_version = fine.clone();
    wrong_version[0] = 0x65;
    let mut long_arp = arp(1, me, OWN, GATEWAY);
    long_arp[4] = 8;
    vec![
        ("another MAC", ether(other, BROADCAST, 0x800, &fine)),
        (
            "ARP from another MAC",
            ether(other, BROADCAST, 0x806, &arp(1, other, OWN, GATEWAY)),
        ),
        (
            "ARP for another MAC",
            all(0x806, &arp(2, other, OWN, GATEWAY)),
        ),
        ("ARP for the gateway", all(0x806, &arp(2, me, GATEWAY, OWN))),
        (
            "ARP announcement of the gateway",
            all(0x806, &arp(1, me, GATEWAY, GATEWAY)),
        ),
        (
            "ARP probe for the gateway",
            all(0x806, &arp(1, me, "0.0.0.0", GATEWAY)),
        ),
        (
            "ARP reply without a sender",
            all(0x806, &arp(2, me, "0.0.0.0", OWN)),
        ),
        ("ARP with long addresses", all(0x806, &long_arp)),
        ("ARP cut", all(0x806, &arp(1, me, OWN, GATEWAY)[..8])),
        ("RARP", all(0x8035, &arp(3, me, OWN, OWN))),
        (
            "another address",
            four("10.1.2.6", 17, 0, &udp(4000, 53, text)),
        ),
        (
            "the gateway's address",
            four(GATEWAY, 1, 0, &[5, 1, 0, 0, 10, 1, 2, 5]),
        ),
        ("no address", four("0.0.0.0", 17, 0, &udp(4000, 53, text))),
        (
            "another address, later fragment",
            four("10.1.2.6", 17, 3, text),
        ),
        (
            "IPv4 with a header beyond its end",
            all(0x800, &long_header),
        ),
        ("IPv4 of version six", all(0x800, &wrong_version)),
        ("UDP cut", four(OWN, 17, 0, &[0, 67])),
        ("DHCP discover", four("0.0.0.0", 17, 0, &udp(68, 67, text))),
        (
            "DHCP request",
            all(0x800, &ip4(OWN, GATEWAY, 17, 0, &udp(68, 67, text))),
        ),
        ("DHCP offer", four(OWN, 17, 0, &udp(67, 68, text))),
        (
            "DHCP offer to a relay",
            four(OWN, 17, 0, &udp(67, 4000, text)),
        ),
        (
            "DHCP offer from another port",
            four(OWN, 17, 0, &udp(4000, 68, text)),
        ),
        (
            "DHCP offer from the gateway",
            four(GATEWAY, 17, 0, &udp(67, 68, text)),
        ),
        (
            "DHCP offer in fragments",
            four(OWN, 17, 0x2000, &udp(67, 68, text)),
        ),
        (
            "another IPv6 address",
            v6("fd00:1::6", GATEWAY6, 17, &udp(4000, 53, text)),
        ),
        (
            "another link-local address",
            v6("fe80::1", NODES, 17, &udp(4000, 53, text)),
        ),
        (
            "an IPv6 fragment of another",
            v6("fd00:1::6", GATEWAY6, 44, &fragment6(17, 9, false, text)),
        ),
        ("no IPv6 address", v6("::", NODES, 17, &udp(4000, 53, text))),
        (
            "solicitation by another",
            v6("fd00:1::6", NODES, 58, &icmp6(135, OWN6)),
        ),
        (
            "probe of another",
            v6("::", NODES, 58, &icmp6(135, GATEWAY6)),
        ),
        (
            "probe of another's link-local",
            v6("::", NODES, 58, &icmp6(135, "fe80::1")),
        ),
        (
            "advertisement of the gateway",
            v6(OWN6, NODES, 58, &icmp6(136, GATEWAY6)),
        ),
        (
            "advertisement of the gateway's link-local",
            v6(LINK_LOCAL, NODES, 58, &icmp6(136, "fe80::1")),
        ),
        (
            "advertisement behind options",
            v6(OWN6, NODES, 60, &options6(58, &icmp6(136, GATEWAY6))),
        ),
        (
            "advertisement in fragments",
            v6(
                OWN6,
                NODES,
                44,
                &fragment6(58, 0, true, &icmp6(136, GATEWAY6)),
            ),
        ),
        ("redirect", v6(LINK_LOCAL, NODES, 58, &icmp6(137, GATEWAY6))),
        (
            "router solicitation",
            v6(LINK_LOCAL, ROUTERS, 58, &icmp6(133, "::")),
        ),
        (
            "router advertisement",
            v6(LINK_LOCAL, NODES, 58, &icmp6(134, "::")),
        ),
        (
            "router advertisement by another",
            v6("fe80::1", NODES, 58, &icmp6(134, "::")),
        ),
        (
            "router advertisement behind options",
            v6(LINK_LOCAL, NODES, 60, &options6(58, &icmp6(134, "::"))),
        ),
        (
            "router advertisement in fragments",
            v6(
                LINK_LOCAL,
                NODES,
                44,
                &fragment6(58, 0, true, &icmp6(134, "::")),
            ),
        ),
        // The type of the message comes with the second fragment only.
        (
            "headers without an end",
            v6(
                LINK_LOCAL,
                NODES,
                44,
                &fragment6(60, 0, true, &options6(60, &[60, 9])),
            ),
        ),
        (
            "type in the second fragment",
            v6(
                LINK_LOCAL,
                NODES,
                44,
                &fragment6(60, 0, true, &options6(58, &[])),
            ),
        ),
        (
            "DHCPv6 solicit",
            v6(LINK_LOCAL, "ff02::1:2", 17, &udp(546, 547, text)),
        ),
        (
            "DHCPv6 advertise",
            v6(LINK_LOCAL, NODES, 17, &udp(547, 546, text)),
        ),
        (
            "DHCPv6 reply from another port",
            v6(LINK_LOCAL, NODES, 17, &udp(4000, 546, text)),
        ),
        (
            "DHCPv6 reply in fragments",
            v6(
                LINK_LOCAL,
                NODES,
                44,
                &fragment6(17, 0, true, &udp(547, 546, text)),
            ),
        ),
        ("VLAN", all(0x8100, &[&[0, 5, 8, 0][..], &fine].concat())),
        ("VLAN 0", all(0x8100, &[&[0, 0, 8, 0][..], &fine].concat())),
        (
            "VLAN in VLAN",
            all(0x88a8, &[&[0, 5, 0x81, 0, 0, 6, 8, 0][..], &fine].concat()),
        ),
        (
            "VLAN with ARP for the gateway",
            all(
                0x8100,
                &[&[0, 0, 8, 6][..], &arp(2, me, GATEWAY, OWN)].concat(),
            ),
        ),
        (
            "spanning tree",
            ether(
                me,
                mac("01:80:c2:00:00:00"),
                38,
                &[&[0x42, 0x42, 3][..], &[0; 35]].concat(),
            ),
        ),
        (
            "IPv4 to the spanning tree",
            ether(me, mac("01:80:c2:00:00:00"), 0x800, &fine),
        ),
        (
            "IPv4 in SNAP",
            all(56, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &fine].concat()),
        ),
        (
            "LLDP",
            ether(me, mac("01:80:c2:00:00:0e"), 0x88cc, &[0; 46]),
        ),
        (
            "flow control",
            ether(me, mac("01:80:c2:00:00:01"), 0x8808, &[0; 46]),
        ),
        (
            "port authentication",
            ether(me, mac("01:80:c2:00:00:03"), 0x888e, &[0; 46]),
        ),
        ("PPPoE", all(0x8863, &[0; 46])),
        ("MPLS", all(0x8847, &[0; 46])),
        ("an experiment", all(0x88b5, &[0; 46])),
        ("a header alone", ether(me, BROADCAST, 0x800, &[])),
    ]
}
