//! Networks as different plugins leave them.
//!
//! Invariant: results are JSON as plugins print it, parsed by the library that parses theirs.
//! Failure: the whole network is printed.

use netns::netlink::{Address as LinkAddress, Route as LinkRoute};
use serde_json::json;

use super::*;

pub(super) fn link(name: &str, addresses: &[&str], routes: &[(&str, Option<&str>)]) -> LinkRecord {
    let route = |(dst, gateway): &(&str, Option<&str>)| LinkRoute {
        dst: dst.parse().unwrap(),
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        source: None,
        metric: 0,
        scope: 0,
        protocol: 3,
        table: LinkRoute::MAIN_TABLE,
        onlink: false,
    };
    let address = |net: &&str| LinkAddress {
        net: net.parse().unwrap(),
        scope: SCOPE_GLOBAL,
    };
    LinkRecord {
        link: name.to_owned(),
        mac: "0A:58:0A:01:00:05".parse().unwrap(),
        mtu: 1450,
        addresses: addresses.iter().map(address).collect(),
        routes: routes.iter().map(route).collect(),
        bridge: "vmbr0".to_owned(),
        tap: "vmtap0".to_owned(),
        port_mac: "02:00:00:00:00:01".parse().unwrap(),
        bridge_mac: "02:00:00:00:00:02".parse().unwrap(),
    }
}

pub(super) fn result(raw: Value) -> cni::AddResult {
    cni::parse_result(raw, cni::SpecVersion::CURRENT).unwrap()
}

pub(super) fn network(links: &[LinkRecord], raw: Value) -> Result<Network, Error> {
    describe(
        &request(),
        Path::new("/run/netns/x"),
        "pods",
        links,
        &result(raw),
    )
}

fn request() -> AddRequest {
    AddRequest {
        id: "c0ffee".to_owned(),
        hostname: "vm-1".to_owned(),
        ..AddRequest::default()
    }
}

fn bridge_result() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.96.0.10"], "search": ["a.b"], "options": ["ndots:5"]},
    })
}

#[test]
fn a_plain_network_is_passed_on_unchanged() {
    let links = [link(
        "eth0",
        &["10.1.0.5/24"],
        &[("0.0.0.0/0", Some("10.1.0.1"))],
    )];
    let network = network(&links, bridge_result()).unwrap();
    let nic = &network.nics[0];
    assert_eq!(nic.mac, "0a:58:0a:01:00:05");
    assert_eq!(nic.addresses[0].net.to_string(), "10.1.0.5/24");
    assert_eq!(nic.addresses[0].gateway, Some("10.1.0.1".parse().unwrap()));
    assert_eq!(network.dns.servers, ["10.96.0.10"]);
    let leases = leases(&network, "vm-1");
    assert_eq!(leases[0].0, "vmbr0");
    let lease = &leases[0].1;
    assert_eq!(
        (lease.gateway, lease.routes.len()),
        (Some([10, 1, 0, 1].into()), 0)
    );
    assert_eq!((lease.mtu, lease.hostname.as_deref()), (1450, Some("vm-1")));
}

#[test]
fn a_gateway_without_a_default_route_makes_none() {
    let network = network(&[link("eth0", &["10.1.0.5/24"], &[])], bridge_result()).unwrap();
    assert_eq!(
        network.nics[0].addresses[0].gateway,
        Some("10.1.0.1".parse().unwrap())
    );
    assert_eq!(leases(&network, "")[0].1.gateway, None);
}

#[test]
fn neighbours_behind_a_router_are_not_on_the_link() {
    let routes = [
        ("10.1.0.1/32", None),
        ("10.1.0.0/24", Some("10.1.0.1")),
        ("0.0.0.0/0", Some("10.1.0.1")),
    ];
    let network = network(&[link("eth0", &["10.1.0.5/24"], &routes)], bridge_result()).unwrap();
    assert_eq!(network.nics[0].addresses[0].net.to_string(), "10.1.0.5/32");
}

#[test]
fn a_result_fills_a_link_that_has_no_address() {
    let network = network(&[link("eth0", &[], &[])], bridge_result()).unwrap();
    let nic = &network.nics[0];
    assert_eq!(nic.addresses[0].net.to_string(), "10.1.0.5/24");
    assert_eq!(nic.routes[0].gw, Some("10.1.0.1".parse().unwrap()));
}

#[test]
fn a_network_without_addresses_is_refused() {
    assert!(network(&[link("eth0", &[], &[])], json!({"cniVersion": "1.0.0"})).is_err());
}

#[test]
fn further_links_and_ipv6_keep_their_own_addresses() {
    let mut second = link(
        "net1",
        &["10.9.0.2/16", "fd00::2/64"],
        &[("::/0", Some("fd00::1"))],
    );
    second.bridge = "vmbr1".to_owned();
    let links = [link("eth0", &["10.1.0.5/24"], &[]), second];
    let network = network(&links, bridge_result()).unwrap();
    let ips: Vec<String> = network.ips().map(|ip| ip.to_string()).collect();
    assert_eq!(ips, ["10.1.0.5", "10.9.0.2", "fd00::2"]);
    assert_eq!(
        network.nics[1].addresses[1].gateway,
        Some("fd00::1".parse().unwrap())
    );
    let leases = leases(&network, "");
    assert_eq!((leases.len(), leases[1].0.as_str()), (2, "vmbr1"));
    assert_eq!(leases[1].1.gateway, None);
}

#[test]
fn name_service_of_the_request_replaces_that_of_the_plugins() {
    let dns = Dns {
        servers: vec!["10.0.0.9".to_owned()],
        ..Dns::default()
    };
    assert_eq!(super::dns(&dns, &bridge_result()), dns);
    let dns = Dns {
        searches: vec!["x".to_owned()],
        ..Dns::default()
    };
    assert_eq!(super::dns(&dns, &bridge_result()).searches, ["a.b"]);
}

#[test]
fn capabilities_are_passed_only_when_declared() {
    let mut request = request();
    assert!(
        attachment(&request, Path::new("/n"))
            .capabilities
            .is_empty()
    );
    request.port_mappings = vec![tapmanager::wire::PortMapping {
        host_port: 8080,
        container_port: 80,
        protocol: "tcp".to_owned(),
        host_ip: String::new(),
    }];
    let capabilities = attachment(&request, Path::new("/n")).capabilities;
    let expected = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    assert_eq!(capabilities["portMappings"], expected);
}

#[test]
fn a_guest_may_claim_what_its_nic_was_given_unless_it_routes_for_others() {
    let links = [
        link("eth0", &["10.1.0.5/24", "fd00::5/64"], &[]),
        link("net1", &[], &[]),
    ];
    let network = network(&links, bridge_result()).unwrap();
    let mut request = request();
    let own = vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
    let expected = [Guard::Own(own), Guard::Own(Vec::new())];
    assert_eq!(guards(&request, &network), expected);
    request.allow_spoofing = true;
    assert_eq!(guards(&request, &network), [Guard::Open, Guard::Open]);
}

#[test]
fn addresses_that_no_host_can_have_are_not_handed_on() {
    let odd = [
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "ff02::1",
        "::",
    ];
    for address in odd {
        let raw = json!({"cniVersion": "1.0.0", "ips": [{"address": format!("{address}/8")}]});
        assert!(
            network(&[link("eth0", &[], &[])], raw).is_err(),
            "{address}"
        );
    }
}

#[test]
fn a_network_row_without_a_mode_is_of_a_connected_guest() {
    let network = network(&[link("eth0", &["10.1.0.5/24"], &[])], bridge_result()).unwrap();
    let recorded = serde_json::to_value(&network).unwrap();
    assert!(recorded.get("detached").is_none(), "{recorded}");
    let read: Network = serde_json::from_value(recorded).unwrap();
    assert_eq!(read.guest_nics().len(), 1);
}
