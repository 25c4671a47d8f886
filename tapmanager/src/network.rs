//! Converts the results and links of plugins to the configuration of the guest: pure functions.
//!
//! Invariant: addresses and routes are those found on the links; the CNI result adds gateways, name
//! service, and addresses for a link that has none. The guest gets a default route only if the pod
//! had one.
//! Failure: a network without any address is an error, the fault of the plugins.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use ipnet::IpNet;
use netns::Guard;
use netns::bridge_setup::LinkRecord;
use netns::netlink::{self, SCOPE_GLOBAL};
use serde_json::{Value, json};
use tapmanager::wire::{AddRequest, Address, Dns, Network, Nic, Route};

mod kinds;
mod known;
mod leases;
mod repair;

pub(crate) use kinds::obstacle;
pub(crate) use known::{adopt, attachments, macs};
pub(crate) use leases::{ipv6_ports, leases};
pub(crate) use repair::repairs;

/// Name of the link that plugins are to make.
pub(crate) const LINK: &str = "eth0";

/// What plugins left is no network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the plugins gave the pod no address")]
    NoAddress,
    #[error(
        "link {0} carries no frames for another MAC address than its own, and its plugin did not give it the one \
         that was asked for"
    )]
    OwnMac(String),
}

/// The attachment that CNI plugins get.
pub(crate) fn attachment(request: &AddRequest, netns: &Path) -> cni::Attachment {
    let args = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &request.pod_namespace),
        ("K8S_POD_NAME", &request.pod_name),
        ("K8S_POD_INFRA_CONTAINER_ID", &request.id),
        ("K8S_POD_UID", &request.pod_uid),
    ];
    let mut capabilities = std::collections::BTreeMap::new();
    if !request.port_mappings.is_empty() {
        capabilities.insert("portMappings".to_owned(), json!(request.port_mappings));
    }
    if let Some(bandwidth) = &request.bandwidth {
        capabilities.insert("bandwidth".to_owned(), json!(bandwidth));
    }
    cni::Attachment {
        container_id: request.id.clone(),
        netns: netns.to_owned(),
        ifname: LINK.to_owned(),
        args: args
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec(),
        capabilities,
    }
}

/// The network as the guest will see it.
pub(crate) fn describe(
    request: &AddRequest,
    netns: &Path,
    cni_network: &str,
    links: &[LinkRecord],
    result: &cni::AddResult,
) -> Result<Network, Error> {
    let nics: Vec<Nic> = links.iter().map(|link| nic(link, &result.parsed)).collect();
    if nics.iter().all(|nic| nic.addresses.is_empty()) {
        return Err(Error::NoAddress);
    }
    Ok(Network {
        id: request.id.clone(),
        netns: netns.to_owned(),
        nics,
        dns: dns(&request.dns, &result.raw),
        cni_network: cni_network.to_owned(),
        cni_result: result.raw.clone(),
        detached: request.detached,
        omitted: Vec::new(),
    })
}

fn nic(link: &LinkRecord, result: &cni::CNIResult) -> Nic {
    let mut routes: Vec<Route> = Vec::new();
    for found in link
        .routes
        .iter()
        .filter(|r| r.table == netlink::Route::MAIN_TABLE)
    {
        let route = Route {
            dst: found.dst.trunc(),
            gw: found.gateway,
        };
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    let mut addresses: Vec<Address> = link
        .addresses
        .iter()
        .filter(|found| found.scope == SCOPE_GLOBAL && is_usable(found.net.addr()))
        .map(|found| Address {
            net: found.net,
            gateway: gateway(found.net, &routes, result),
        })
        .collect();
    // The kernel lists IPv4 first; the pod's primary address is the first that the plugins name.
    addresses.sort_by_key(|address| {
        let named = result.ips.iter();
        let place = named
            .map(|ip| ip.address.addr())
            .position(|ip| ip == address.net.addr());
        place.unwrap_or(usize::MAX)
    });
    if addresses.is_empty() {
        (addresses, routes) = from_result(link, result);
    }
    for address in &mut addresses {
        // A plugin such as ptp routes to the neighbours, so they are not on the link.
        let subnet = address.net.trunc();
        if routes
            .iter()
            .any(|route| route.dst == subnet && route.gw.is_some())
        {
            address.net = IpNet::from(address.net.addr());
        }
    }
    Nic {
        link: link.link.clone(),
        mac: link.mac.to_string(),
        mtu: link.mtu,
        bridge: link.bridge.clone(),
        tap: link.tap.clone(),
        addresses,
        routes,
    }
}

/// The gateway that the result names for an address, or that of the default route.
fn gateway(net: IpNet, routes: &[Route], result: &cni::CNIResult) -> Option<IpAddr> {
    let named = result.ips.iter().find(|ip| ip.address.addr() == net.addr());
    named.and_then(|ip| ip.gateway).or_else(|| {
        let same_family = |route: &&Route| route.dst.addr().is_ipv4() == net.addr().is_ipv4();
        routes
            .iter()
            .filter(same_family)
            .find(|route| route.dst.prefix_len() == 0)?
            .gw
    })
}

/// The addresses and routes of a link, from the result of plugins that report what they do not configure.
fn from_result(link: &LinkRecord, result: &cni::CNIResult) -> (Vec<Address>, Vec<Route>) {
    let addresses: Vec<Address> = result
        .ips
        .iter()
        .filter(|ip| repair::named_link(ip, result).unwrap_or(LINK) == link.link)
        .filter(|ip| is_usable(ip.address.addr()))
        .map(|ip| Address {
            net: ip.address,
            gateway: ip.gateway,
        })
        .collect();
    let family_gateway = |dst: &IpNet| {
        let same = |a: &&Address| a.net.addr().is_ipv4() == dst.addr().is_ipv4();
        addresses
            .iter()
            .filter(same)
            .find_map(|address| address.gateway)
    };
    let routes = result
        .routes
        .iter()
        .filter(|_| !addresses.is_empty())
        .map(|route| Route {
            dst: route.dst,
            gw: route.gw.or_else(|| family_gateway(&route.dst)),
        })
        .collect();
    (addresses, routes)
}

/// Whether a host can have the address.
fn is_usable(ip: IpAddr) -> bool {
    let is_special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    !is_special && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

fn dns(wanted: &Dns, result: &Value) -> Dns {
    if !wanted.servers.is_empty() {
        return wanted.clone();
    }
    let list = |name: &str| -> Vec<String> {
        let values = result
            .get("dns")
            .and_then(|dns| dns.get(name))
            .and_then(Value::as_array);
        let texts = values.into_iter().flatten().filter_map(Value::as_str);
        texts
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .collect()
    };
    Dns {
        servers: list("nameservers"),
        searches: list("search"),
        options: list("options"),
    }
}

/// What each NIC's guest may claim to be.
pub(crate) fn guards(request: &AddRequest, network: &Network) -> Vec<Guard> {
    let guard = |nic: &Nic| {
        if request.allow_spoofing {
            return Guard::Open;
        }
        Guard::Own(nic.addresses.iter().map(|a| a.net.addr()).collect())
    };
    network.nics.iter().map(guard).collect()
}

#[cfg(test)]
mod tests;
