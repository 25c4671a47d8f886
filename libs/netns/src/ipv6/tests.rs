//! What the tests of both protocols share.
//!
//! Invariant: one lease with something of each kind in it.
//! Failure: none; it is a value.

use std::net::Ipv6Addr;

use super::Lease;
use crate::mac::Mac;

pub(super) fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

pub(super) fn lease() -> Lease {
    let route = |dst: &str, hop: Option<&str>| (dst.parse().unwrap(), hop.map(ip));
    Lease {
        mac: Mac::new([0x0a, 0, 0, 0, 0, 7]),
        addresses: vec!["fd00:7::5/64".parse().unwrap()],
        routes: vec![
            route("fd00:7::/64", None),
            route("fd00:9::/48", Some("fd00:7::9")),
            route("fd00:8::/64", Some("fd00:7::1")),
            route("::/0", Some("fd00:7::1")),
        ],
        mtu: 1450,
        dns: vec![ip("fd00:96::a")],
        searches: vec!["a.b".to_owned(), "no name".to_owned(), "c".to_owned()],
        hostname: Some("vm-1".to_owned()),
    }
}
