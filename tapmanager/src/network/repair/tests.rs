//! Results as plugins in the field print them, against links as they leave them.
//!
//! Invariant: each row is a plugin's mistake, what the guest gets all the same, and what is logged.
//! Failure: the row's name is that of the test case.

use netns::bridge_setup::LinkRecord;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::tests::{link, network, result};
use super::super::{Network, leases};
use super::repairs;

fn bridge_links() -> Vec<LinkRecord> {
    let routes = [("0.0.0.0/0", Some("10.1.0.1"))];
    vec![link("eth0", &["10.1.0.5/24"], &routes)]
}

fn two_links() -> Vec<LinkRecord> {
    let mut links = bridge_links();
    links.push(link("net1", &["10.9.0.2/16"], &[]));
    links
}

/// Link, address and gateway of each address, in the order that the status gives them.
fn shown(network: &Network) -> Vec<String> {
    let nics = network.nics.iter();
    nics.flat_map(|nic| {
        nic.addresses.iter().map(|a| {
            let gateway = a.gateway.map_or_else(String::new, |g| format!(" via {g}"));
            format!("{} {}{gateway}", nic.link, a.net)
        })
    })
    .collect()
}

#[rstest]
#[case::sound(
    bridge_links(),
    json!({
        "interfaces": [{"name": "cbr0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}],
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0"}],
    }),
    &["eth0 10.1.0.5/24 via 10.1.0.1"],
    &[]
)]
#[case::weave_says_one_address_and_nothing_else(
    bridge_links(),
    json!({"ips": [{"address": "10.1.0.5/24"}]}),
    &["eth0 10.1.0.5/24 via 10.1.0.1"],
    &["eth0 is missing", "10.1.0.5 without interface is on eth0", "routes are missing"]
)]
#[case::an_address_of_the_nodes_end(
    bridge_links(),
    json!({
        "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}],
        "ips": [{"address": "10.1.0.5/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
    }),
    &["eth0 10.1.0.5/24 via 10.1.0.1"],
    &["10.1.0.5 without interface is on eth0"]
)]
#[case::reordered_interfaces_with_each_others_addresses(
    two_links(),
    json!({
        "interfaces": [{"name": "net1", "sandbox": "/n"}, {"name": "eth0", "sandbox": "/n"}],
        "ips": [
            {"address": "10.9.0.2/16", "interface": 1},
            {"address": "10.1.0.5/24", "interface": 0},
        ],
        "routes": [{"dst": "0.0.0.0/0"}],
    }),
    &["eth0 10.1.0.5/24 via 10.1.0.1", "net1 10.9.0.2/16"],
    &["10.9.0.2 of eth0 is on net1", "10.1.0.5 of net1 is on eth0"]
)]
#[case::a_second_plugin_says_nothing(
    two_links(),
    json!({
        "interfaces": [{"name": "eth0", "sandbox": "/n"}],
        "ips": [{"address": "10.1.0.5/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
    }),
    &["eth0 10.1.0.5/24 via 10.1.0.1", "net1 10.9.0.2/16"],
    &["net1 is missing", "10.9.0.2 of net1 is missing"]
)]
#[case::another_address_than_the_links(
    bridge_links(),
    json!({
        "interfaces": [{"name": "eth0", "sandbox": "/n"}],
        "ips": [{"address": "10.1.0.6/24", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
    }),
    &["eth0 10.1.0.5/24 via 10.1.0.1"],
    &["10.1.0.6 of the result is on no link", "10.1.0.5 of eth0 is missing"]
)]
#[case::words_instead_of_addresses(
    vec![link("eth0", &[], &[]), link("net1", &[], &[])],
    json!({
        "interfaces": [{"name": "veth1"}, {"name": "net1", "sandbox": "/n"}],
        "ips": [
            {"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 0},
            {"address": "10.9.0.2/16", "interface": 1},
            {"address": "0.0.0.0/0", "interface": 1},
        ],
    }),
    &["eth0 10.1.0.5/24 via 10.1.0.1", "net1 10.9.0.2/16"],
    &["eth0 is missing", "10.1.0.5 without interface is on eth0", "0.0.0.0 of the result is on no \
        link"]
)]
fn links_take_precedence_and_each_difference_is_reported(
    #[case] links: Vec<LinkRecord>,
    #[case] raw: Value,
    #[case] expected: &[&str],
    #[case] differences: &[&str],
) {
    let network = network(&links, raw.clone()).unwrap();
    assert_eq!(shown(&network), expected);
    let repairs = repairs(&links, &result(raw).parsed, &network);
    assert_eq!(repairs.len(), differences.len(), "{repairs:?}");
    for (repair, expected) in repairs.iter().zip(differences) {
        assert!(repair.contains(expected), "{repair:?} for {expected:?}");
    }
}

fn routes(lease: &[(&str, Option<&str>)]) -> Vec<String> {
    let links = [link("eth0", &["10.1.2.3/32"], lease)];
    let raw = json!({
        "interfaces": [{"name": "cali1"}, {"name": "eth0", "sandbox": "/n"}],
        "ips": [{"address": "10.1.2.3/32"}],
    });
    let network = network(&links, raw).unwrap();
    let lease = &leases(&network, "")[0].1;
    let shown = |gateway: Option<std::net::Ipv4Addr>| gateway.map(|g| g.to_string());
    let mut all: Vec<String> = lease
        .routes
        .iter()
        .map(|(dst, hop)| format!("{dst} {}", shown(*hop).unwrap_or_default()))
        .collect();
    all.extend(shown(lease.gateway).map(|gateway| format!("default {gateway}")));
    all
}

#[test]
fn a_gateway_outside_the_subnet_is_passed_on_unchanged() {
    let calico = [("169.254.1.1/32", None), ("0.0.0.0/0", Some("169.254.1.1"))];
    assert_eq!(routes(&calico), ["169.254.1.1/32 ", "default 169.254.1.1"]);
    assert_eq!(routes(&calico[1..]), ["default 169.254.1.1"]);
    // Everything is a neighbour.
    assert_eq!(routes(&[("0.0.0.0/0", None)]), ["0.0.0.0/0 "]);
}
