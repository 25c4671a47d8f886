//! Frames of neighbours and routers, right ones and each kind of wrong one.
//!
//! Invariant: a wrong frame differs from a right one in one thing.
//! Failure: the frame's description is in the panic.

use proptest::prelude::*;

use super::*;

const ROUTER: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
const VIRTUAL: Mac = Mac::new([0, 0, 0x5e, 0, 2, 1]);
const GUEST: Mac = Mac::new([0x0a, 0, 0, 0, 0, 7]);

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// What a frame is made of.
struct Parts {
    mac: Mac,
    from: &'static str,
    to: &'static str,
    hops: u8,
    kind: u8,
    code: u8,
    flags: u8,
    body: Vec<u8>,
}

impl Parts {
    fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(self.mac.bytes(), GUEST.bytes())
            .ipv6(ip(self.from).octets(), ip(self.to).octets(), self.hops)
            .icmpv6_raw(self.kind, self.code, [self.flags, 0, 0, 0])
            .write(&mut frame, &self.body)
            .unwrap();
        frame
    }
}

fn advertisement() -> Parts {
    Parts {
        mac: ROUTER,
        from: "fe80::abc",
        to: "ff02::1",
        hops: 255,
        kind: kind::ROUTER_ADVERTISEMENT,
        code: 0,
        flags: 64,
        body: [&[0; 8][..], &[SOURCE_ADDRESS, 1, 2, 0, 0, 0, 0, 1]].concat(),
    }
}

fn answer() -> Parts {
    let option = [&[TARGET_ADDRESS, 1][..], &VIRTUAL.bytes()].concat();
    Parts {
        from: "fd00:7::1",
        to: "fd00:7::5",
        kind: kind::NEIGHBOUR_ADVERTISEMENT,
        flags: 0xe0,
        body: [&ip("fd00:7::1").octets()[..], &option].concat(),
        ..advertisement()
    }
}

#[test]
fn routers_and_neighbours_are_read() {
    let address = ip("fe80::abc");
    let expected = Notice::Router {
        address,
        mac: ROUTER,
    };
    assert_eq!(parse(&advertisement().frame()), Some(expected));
    let target = ip("fd00:7::1");
    let expected = Notice::Neighbour {
        target,
        mac: VIRTUAL,
    };
    assert_eq!(parse(&answer().frame()), Some(expected));
    let mut short = answer();
    short.body.truncate(16);
    let expected = Notice::Neighbour {
        target,
        mac: ROUTER,
    };
    assert_eq!(parse(&short.frame()), Some(expected));
    // As the smallest frames of a wire.
    let mut padded = short.frame();
    padded.resize(padded.len() + 6, 0xff);
    assert_eq!(parse(&padded), Some(expected));
}

#[test]
fn what_the_rules_call_invalid_is_not_believed() {
    type Change = fn(&mut Parts);
    let of_both: [(&str, Change); 6] = [
        ("it crossed a router", |parts| parts.hops = 254),
        ("its code is unknown", |parts| parts.code = 1),
        ("its sender is a group", |parts| {
            parts.mac = Mac::new([0x33; 6])
        }),
        ("it is cut in the fixed part", |parts| {
            parts.body.truncate(7)
        }),
        ("an option is of no length", |parts| {
            let at = parts.body.len() - 7;
            parts.body[at] = 0;
        }),
        ("an option is longer than the rest", |parts| {
            let at = parts.body.len() - 7;
            parts.body[at] = 2;
        }),
    ];
    for (what, change) in of_both {
        for mut parts in [advertisement(), answer()] {
            change(&mut parts);
            assert_eq!(parse(&parts.frame()), None, "{what}, {}", parts.kind);
        }
    }
    let mut far = advertisement();
    far.from = "fd00:7::1";
    assert_eq!(parse(&far.frame()), None, "no link-local address");
    let mut to_all = answer();
    to_all.to = "ff02::1";
    assert_eq!(parse(&to_all.frame()), None, "an answer to all");
    let mut group = answer();
    group.body[..16].copy_from_slice(&ip("ff02::1").octets());
    assert_eq!(parse(&group.frame()), None, "about a group");
    let mut nowhere = answer();
    nowhere.body[18..].fill(0);
    assert_eq!(parse(&nowhere.frame()), None, "no hardware address");
    let mut changed = advertisement().frame();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(parse(&changed), None, "its checksum is wrong");
    let mut other = advertisement();
    other.kind = kind::ROUTER_SOLICITATION;
    assert_eq!(parse(&other.frame()), None, "a question");
}

#[test]
fn questions_are_valid_for_their_receivers() {
    let frame = where_is(ip("fd00:7::12:3456"), GUEST, ip("fd00:7::5")).unwrap();
    let packet = SlicedPacket::from_ethernet(&frame).unwrap();
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else {
        panic!("{frame:?}")
    };
    let group = ip("ff02::1:ff12:3456");
    assert!(icmp.is_checksum_valid(ip("fd00:7::5").octets(), group.octets()));
    assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    assert_eq!(icmp.slice()[8..24], ip("fd00:7::12:3456").octets());
    assert_eq!(icmp.slice()[24..], [1, 1, 0x0a, 0, 0, 0, 0, 7]);
    let frame = routers(GUEST).unwrap();
    assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 2]);
    assert_eq!((frame[21], frame[54], frame.len()), (255, 133, 62));
}

proptest! {
    #[test]
    fn no_frame_brings_the_search_down(
        mut frame in prop::collection::vec(any::<u8>(), 0..200),
        kind in prop::option::of(134_u8..=136),
    ) {
        if let Some(kind) = kind {
            let parts = Parts { kind, body: frame, ..advertisement() };
            frame = parts.frame();
        }
        match parse(&frame) {
            Some(Notice::Router { address, mac }) => {
                prop_assert!(address.is_unicast_link_local() && mac.is_unicast());
            }
            Some(Notice::Neighbour { target, mac }) => {
                prop_assert!(!target.is_multicast() && mac.is_unicast());
            }
            None => {}
        }
    }
}
