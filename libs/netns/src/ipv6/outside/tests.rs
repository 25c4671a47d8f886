//! What a search believes, without a network.
//!
//! Invariant: notices are those that the parser lets through; time is not part of the logic.
//! Failure: the question or the answer that differs.

use super::super::tests::{ip, lease};
use super::*;

const GATEWAY: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
const STRANGER: Mac = Mac::new([2, 0, 0, 0, 0, 2]);
const DERIVED: &str = "fe80::ff:fe00:1";

fn search(known: &[(&str, &str)]) -> Search {
    let known = known.iter().map(|(hop, router)| (ip(hop), ip(router)));
    Search::new(&lease(), &[ip("fd00:7::1")], &known.collect())
}

fn is_at(target: &str, mac: Mac) -> Notice {
    let target = ip(target);
    Notice::Neighbour { target, mac }
}

fn router(address: &str, mac: Mac) -> Notice {
    let address = ip(address);
    Notice::Router { address, mac }
}

fn found(search: &Search) -> Vec<String> {
    search.found().values().map(ToString::to_string).collect()
}

#[test]
fn the_router_is_the_one_that_advertises_from_the_gateways_hardware_address() {
    let mut search = search(&[]);
    let gateway = Question::WhereIs(ip("fd00:7::1"));
    assert_eq!(search.open(Subject::Gateways), [gateway]);
    assert_eq!(search.open(Subject::Routers), []);
    // Before the gateway is known every router is a stranger.
    search.receive(router("fe80::2", STRANGER));
    search.receive(is_at("fd00:7::1", GATEWAY));
    search.receive(is_at("fd00:7::1", STRANGER));
    search.receive(is_at("fd00:7::9", STRANGER));
    assert_eq!(search.open(Subject::Gateways), []);
    assert_eq!(search.open(Subject::Routers), [Question::WhoIsRouter]);
    search.receive(router("fe80::2", STRANGER));
    assert_eq!(search.open(Subject::Routers), [Question::WhoIsRouter]);
    search.receive(router("fe80::abc", GATEWAY));
    search.receive(router("fe80::abd", GATEWAY));
    assert_eq!(search.open(Subject::Routers), []);
    assert_eq!(search.open(Subject::Derived), []);
    assert_eq!(found(&search), ["fe80::abc"]);
    assert_eq!((search.answered.len(), search.advertised.len()), (1, 1));
}

#[test]
fn the_address_of_the_hardware_address_counts_when_it_answers_from_there() {
    let mut search = search(&[]);
    search.receive(is_at(DERIVED, GATEWAY));
    search.receive(is_at("fd00:7::1", GATEWAY));
    let derived = Question::WhereIs(ip(DERIVED));
    assert_eq!(search.open(Subject::Derived), [derived]);
    search.receive(is_at(DERIVED, STRANGER));
    assert_eq!(search.open(Subject::Derived), [derived]);
    assert_eq!(found(&search), Vec::<String>::new());
    search.receive(is_at(DERIVED, GATEWAY));
    assert_eq!(search.open(Subject::Derived), []);
    assert_eq!(found(&search), [DERIVED]);
}

#[test]
fn an_address_that_was_found_earlier_needs_no_advertisement_while_it_answers() {
    let mut search = search(&[("fd00:7::1", "fe80::abc"), ("fd00:8::1", "fe80::def")]);
    assert_eq!(search.open(Subject::Gateways).len(), 2);
    search.receive(is_at("fd00:7::1", GATEWAY));
    search.receive(is_at("fe80::abc", STRANGER));
    assert_eq!(search.open(Subject::Routers), [Question::WhoIsRouter]);
    search.receive(is_at("fe80::abc", GATEWAY));
    assert_eq!(search.open(Subject::Routers), []);
    assert_eq!(found(&search), ["fe80::abc"]);
}

#[test]
fn a_gateway_that_moved_is_found_where_it_is_now() {
    let mut search = search(&[("fd00:7::1", "fe80::abc")]);
    search.receive(is_at("fd00:7::1", STRANGER));
    search.receive(is_at("fe80::abc", GATEWAY));
    assert_eq!(search.open(Subject::Routers), [Question::WhoIsRouter]);
    search.receive(router("fe80::def", STRANGER));
    assert_eq!(found(&search), ["fe80::def"]);
}

#[test]
fn the_guest_itself_is_no_gateway_and_the_number_of_gateways_is_bounded() {
    let mut one = search(&[]);
    one.receive(is_at("fd00:7::1", lease().mac));
    assert!(one.answered.is_empty());
    let many: Vec<Ipv6Addr> = (1..=20)
        .map(|n| Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, n))
        .collect();
    let search = Search::new(&lease(), &many, &Routers::new());
    assert_eq!(search.open(Subject::Gateways).len(), MOST);
    assert!(search.gateways.contains_key(&many[0]));
}

#[test]
fn a_gateway_is_asked_for_by_the_address_of_its_subnet() {
    let mut lease = lease();
    lease.addresses.insert(0, "fd00:1::5/64".parse().unwrap());
    let gateways = [ip("fd00:7::1"), ip("fd00:f::1")];
    let search = Search::new(&lease, &gateways, &Routers::new());
    assert_eq!(search.gateways[&gateways[0]], ip("fd00:7::5"));
    assert_eq!(search.gateways[&gateways[1]], ip("fd00:1::5"));
}
