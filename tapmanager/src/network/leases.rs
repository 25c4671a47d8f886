//! The configuration of the guest's NICs: a network as leases of the two servers.
//!
//! Invariant: each family gets its own addresses, routes and name servers; a NIC without an address
//! of a family is not served by that family's server.
//! Failure: what is of the wrong family, or no address at all, is left out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netns::dhcp::Lease;
use netns::ipv6;
use tapmanager::wire::{Network, Nic, Route};

/// The DHCP lease of each NIC that has an IPv4 address, with its bridge.
pub(crate) fn leases(network: &Network, hostname: &str) -> Vec<(String, Lease)> {
    let dns: Vec<Ipv4Addr> = network
        .dns
        .servers
        .iter()
        .filter_map(|s| s.parse().ok())
        .collect();
    let lease = |nic: &Nic| {
        let address = nic.addresses.iter().find_map(|address| v4(address.net))?;
        let mut lease = Lease {
            mac: nic.mac.parse().ok()?,
            address,
            gateway: None,
            routes: Vec::new(),
            mtu: nic.mtu,
            dns: dns.clone(),
            searches: network.dns.searches.clone(),
            hostname: Some(hostname.to_owned()).filter(|name| !name.is_empty()),
        };
        for route in &nic.routes {
            let hop = match route.gw {
                Some(IpAddr::V6(_)) => continue,
                Some(IpAddr::V4(hop)) => Some(hop),
                None => None,
            };
            match v4(route.dst) {
                Some(dst) if dst.prefix_len() == 0 && hop.is_some() => {
                    lease.gateway = lease.gateway.or(hop);
                }
                Some(dst) => lease.routes.push((dst, hop)),
                None => {}
            }
        }
        Some((nic.bridge.clone(), lease))
    };
    network.nics.iter().filter_map(lease).collect()
}

/// What each NIC that has an IPv6 address gets by router advertisements and DHCPv6.
pub(crate) fn ipv6_ports(network: &Network, hostname: &str) -> Vec<ipv6::Port> {
    let servers = network.dns.servers.iter();
    let dns: Vec<Ipv6Addr> = servers.filter_map(|s| s.parse().ok()).collect();
    let port = |nic: &Nic| {
        let addresses: Vec<_> = nic.addresses.iter().filter_map(|a| v6(a.net)).collect();
        let route = |route: &Route| {
            let hop = match route.gw {
                Some(IpAddr::V4(_)) => return None,
                Some(IpAddr::V6(hop)) => Some(hop),
                None => None,
            };
            Some((v6(route.dst)?, hop))
        };
        let lease = ipv6::Lease {
            mac: nic.mac.parse().ok()?,
            addresses,
            routes: nic.routes.iter().filter_map(route).collect(),
            mtu: nic.mtu,
            dns: dns.clone(),
            searches: network.dns.searches.clone(),
            hostname: Some(hostname.to_owned()).filter(|name| !name.is_empty()),
        };
        (!lease.addresses.is_empty()).then(|| ipv6::Port {
            link: nic.link.clone(),
            tap: nic.tap.clone(),
            lease,
        })
    };
    network.nics.iter().filter_map(port).collect()
}

fn v6(net: IpNet) -> Option<Ipv6Net> {
    match net {
        IpNet::V6(net) => Some(net),
        IpNet::V4(_) => None,
    }
}

fn v4(net: IpNet) -> Option<Ipv4Net> {
    match net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::network::tests::{link, network};

    fn dual_stack() -> Network {
        let links = [link(
            "eth0",
            &["10.1.0.5/24", "fd00:1::5/64"],
            &[
                ("0.0.0.0/0", Some("10.1.0.1")),
                ("fd00:1::/64", None),
                ("::/0", Some("fd00:1::1")),
            ],
        )];
        let result = json!({
            "cniVersion": "1.0.0",
            "ips": [{"address": "fd00:1::5/64"}, {"address": "10.1.0.5/24"}],
            "dns": {"nameservers": ["10.96.0.10", "fd00:96::a", "nonsense"]},
        });
        network(&links, result).unwrap()
    }

    #[test]
    fn the_primary_address_is_the_first_that_the_plugins_name() {
        let ips: Vec<String> = dual_stack().ips().map(|ip| ip.to_string()).collect();
        assert_eq!(ips, ["fd00:1::5", "10.1.0.5"]);
    }

    #[test]
    fn each_address_family_gets_its_own_configuration() {
        let network = dual_stack();
        let port = &ipv6_ports(&network, "vm-1")[0];
        let (bridge, four) = &leases(&network, "vm-1")[0];
        let names = [&port.link, &port.tap, bridge];
        assert_eq!(names, ["eth0", "vmtap0", "vmbr0"]);
        let six = &port.lease;
        let hop = Some("fd00:1::1".parse().unwrap());
        assert_eq!(six.addresses, ["fd00:1::5/64".parse().unwrap()]);
        assert_eq!(
            six.routes,
            [
                ("fd00:1::/64".parse().unwrap(), None),
                ("::/0".parse().unwrap(), hop)
            ]
        );
        assert_eq!(six.dns, ["fd00:96::a".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(four.dns, ["10.96.0.10".parse::<Ipv4Addr>().unwrap()]);
        assert!(four.routes.is_empty());
    }

    #[test]
    fn a_nic_without_a_family_has_no_lease_of_it() {
        let result = json!({"cniVersion": "1.0.0"});
        let six = network(&[link("eth0", &["fd00:1::5/64"], &[])], result.clone()).unwrap();
        assert_eq!((leases(&six, "").len(), ipv6_ports(&six, "").len()), (0, 1));
        let four = network(&[link("eth0", &["10.1.0.5/24"], &[])], result).unwrap();
        assert_eq!(
            (leases(&four, "").len(), ipv6_ports(&four, "").len()),
            (1, 0)
        );
    }
}
