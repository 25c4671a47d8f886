//! Advertisements, as values.
//!
//! Invariant: options are read by the library, not by the code that wrote them.
//! Failure: shows the options that were found.

use etherparse::icmpv6::{NdpOptionSlice, NdpOptionsIterator};

use super::*;
use crate::ipv6::frame;
use crate::ipv6::tests::{ip, lease};

fn routers(pairs: &[(&str, &str)]) -> BTreeMap<Ipv6Addr, Ipv6Addr> {
    pairs
        .iter()
        .map(|(hop, local)| (ip(hop), ip(local)))
        .collect()
}

/// Options as codes with their bytes after code and length.
fn options(advert: &Advert) -> Vec<(u8, Vec<u8>)> {
    let parsed = NdpOptionsIterator::from_slice(&advert.options);
    let parsed = parsed.map(|option| option.unwrap());
    parsed
        .map(|option| (option.as_bytes()[0], option.as_bytes()[2..].to_vec()))
        .collect()
}

#[test]
fn the_default_router_describes_the_link_and_others_only_their_routes() {
    let known = routers(&[("fd00:7::1", "fe80::1"), ("fd00:7::9", "fe80::9")]);
    let adverts = adverts(&lease(), &known);
    let heads: Vec<_> = adverts.iter().map(|a| (a.source, a.lifetime)).collect();
    assert_eq!(heads, [(ip("fe80::1"), 65_535), (ip("fe80::9"), 0)]);
    let codes: Vec<u8> = options(&adverts[0]).iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [3, 5, 25, 31, 24]);
    let other = options(&adverts[1]);
    assert_eq!(other.len(), 1);
    assert_eq!((other[0].0, other[0].1[0]), (24, 48));
    assert_eq!(other[0].1[6..], ip("fd00:9::").octets());
}

#[test]
fn the_prefix_is_on_the_link_and_not_for_choosing_addresses() {
    let adverts = adverts(&lease(), &BTreeMap::new());
    let mut prefixes = 0;
    for option in NdpOptionsIterator::from_slice(&adverts[0].options) {
        if let NdpOptionSlice::PrefixInformation(prefix) = option.unwrap() {
            prefixes += 1;
            assert!(prefix.on_link() && !prefix.autonomous_address_configuration());
            assert_eq!(
                (prefix.prefix_length(), prefix.prefix()),
                (64, ip("fd00:7::").octets())
            );
        }
    }
    assert_eq!(prefixes, 1);
}

#[test]
fn without_a_known_gateway_the_link_is_described_and_nothing_is_routed() {
    let adverts = adverts(&lease(), &BTreeMap::new());
    assert_eq!(adverts.len(), 1);
    assert_eq!(
        (adverts[0].source, adverts[0].lifetime),
        (SERVER_ADDRESS, 0)
    );
    assert!(options(&adverts[0]).iter().all(|(code, _)| *code != 24));
}

#[test]
fn a_host_address_has_no_subnet_and_a_route_without_hop_is_on_the_link() {
    let lease = Lease {
        addresses: vec!["fd00:7::5/128".parse().unwrap()],
        routes: vec![("fd00:7::1/128".parse().unwrap(), None)],
        mtu: 1000,
        dns: Vec::new(),
        searches: Vec::new(),
        ..lease()
    };
    let options = options(&adverts(&lease, &BTreeMap::new())[0]);
    assert_eq!(options.len(), 1, "no MTU below the smallest: {options:?}");
    assert_eq!((options[0].0, options[0].1[0]), (3, 128));
    assert_eq!(options[0].1[14..], ip("fd00:7::1").octets());
}

#[test]
fn names_are_whole_and_padded_and_what_is_no_name_is_left_out() {
    let options = options(&adverts(&lease(), &BTreeMap::new())[0]);
    let searches = &options.iter().find(|(code, _)| *code == 31).unwrap().1;
    assert_eq!(searches[6..], [1, b'a', 1, b'b', 0, 1, b'c', 0]);
}

#[test]
fn an_advertisement_fits_the_smallest_packet() {
    let far = |n: u16| {
        (
            format!("fd01:{n:x}::/48").parse().unwrap(),
            Some(ip("fd00:7::1")),
        )
    };
    let routes = (0..200).map(far).chain(lease().routes).collect();
    let lease = Lease { routes, ..lease() };
    let adverts = adverts(&lease, &routers(&[("fd00:7::1", "fe80::1")]));
    assert!(adverts[0].options.len() <= 1224);
    assert!(options(&adverts[0]).len() > 40);
    assert!(frame::advertisement(&adverts[0]).unwrap().len() <= 14 + 1280);
}
