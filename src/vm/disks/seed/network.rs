//! cloud-init's network configuration, versions 1 and 2, of a pod's network.
//!
//! Invariant: a NIC is known by its MAC address, and has the addresses, routes and MTU that the
//! pod's network gives it, or DHCP. The text is JSON, which is YAML.
//! Failure: none. What a format cannot express is left to DHCP, which has it, too.

use std::net::IpAddr;

use podspec::NetworkVersion;
use serde_json::{Map, Value, json};
use tapmanager::wire::Network;

use super::plan::{Family, Plan, plans};

/// The configuration of all NICs.
pub(super) fn no_cloud(network: Option<&Network>, version: NetworkVersion, dhcp: bool) -> Value {
    let plans = plans(network, dhcp);
    let servers = servers(network);
    let searches = network.map_or(&[][..], |network| &network.dns.searches);
    match version {
        NetworkVersion::V1 => version_1(&plans, &servers, searches),
        NetworkVersion::V2 => version_2(&plans, &servers, searches),
    }
}

/// The addresses of name servers.
pub(super) fn servers(network: Option<&Network>) -> Vec<IpAddr> {
    let all = network.iter().flat_map(|network| &network.dns.servers);
    all.filter_map(|server| server.parse().ok()).collect()
}

fn version_2(plans: &[Plan<'_>], servers: &[IpAddr], searches: &[String]) -> Value {
    let mut nics = Map::new();
    let mut names = name_service(servers, searches);
    for plan in plans {
        let mut nic = Map::new();
        nic.insert("match".to_owned(), json!({"macaddress": plan.nic.mac}));
        nic.insert("mtu".to_owned(), json!(plan.nic.mtu));
        for (key, family) in [("dhcp4", Family::V4), ("dhcp6", Family::V6)] {
            if plan.has_dhcp(family) {
                nic.insert(key.to_owned(), json!(true));
            }
        }
        if plan.is_unconfigured() {
            // No boot waits for an answer.
            nic.insert("optional".to_owned(), json!(true));
        }
        let addresses: Vec<_> = plan.addresses().map(|net| net.to_string()).collect();
        if !addresses.is_empty() {
            nic.insert("addresses".to_owned(), json!(addresses));
        }
        if plan.ignores_routers() {
            nic.insert("accept-ra".to_owned(), json!(false));
        }
        let routes: Vec<_> = plan.routes().map(|route| v2_route(plan, route)).collect();
        if !routes.is_empty() {
            nic.insert("routes".to_owned(), json!(routes));
        }
        if let Some(names) = names.take_if(|_| !addresses.is_empty()) {
            nic.insert("nameservers".to_owned(), names);
        }
        nics.insert(plan.nic.link.clone(), nic.into());
    }
    json!({"version": 2, "ethernets": nics})
}

fn v2_route(plan: &Plan<'_>, route: &tapmanager::wire::Route) -> Value {
    let to = route.dst.to_string();
    match route.gw {
        Some(via) if plan.reaches(via) => json!({"to": to, "via": via}),
        Some(via) => json!({"to": to, "via": via, "on-link": true}),
        None => json!({"to": to, "scope": "link"}),
    }
}

fn name_service(servers: &[IpAddr], searches: &[String]) -> Option<Value> {
    let mut names = Map::new();
    if !servers.is_empty() {
        names.insert("addresses".to_owned(), json!(servers));
    }
    if !searches.is_empty() {
        names.insert("search".to_owned(), json!(searches));
    }
    (!names.is_empty()).then(|| names.into())
}

fn version_1(plans: &[Plan<'_>], servers: &[IpAddr], searches: &[String]) -> Value {
    let mut config: Vec<Value> = plans.iter().map(v1_nic).collect();
    let has_addresses = plans.iter().any(|plan| plan.addresses().next().is_some());
    if has_addresses && (!servers.is_empty() || !searches.is_empty()) {
        config.push(json!({"type": "nameserver", "address": servers, "search": searches}));
    }
    json!({"version": 1, "config": config})
}

fn v1_nic(plan: &Plan<'_>) -> Value {
    let mut subnets = Vec::new();
    for (family, dhcp, fixed) in [
        (Family::V4, "dhcp4", "static"),
        (Family::V6, "dhcp6", "static6"),
    ] {
        if plan.has_dhcp(family) || !plan.is_plain(family) {
            subnets.push(json!({"type": dhcp}));
            continue;
        }
        for (index, net) in plan.nets(family).enumerate() {
            let mut subnet = Map::new();
            subnet.insert("type".to_owned(), json!(fixed));
            match net {
                ipnet::IpNet::V4(net) => {
                    subnet.insert("address".to_owned(), json!(net.addr()));
                    subnet.insert("netmask".to_owned(), json!(net.netmask()));
                }
                ipnet::IpNet::V6(net) => {
                    subnet.insert("address".to_owned(), json!(net.to_string()));
                }
            }
            let routes: Vec<_> = plan.routes_of(net, index == 0).map(v1_route).collect();
            if !routes.is_empty() {
                subnet.insert("routes".to_owned(), json!(routes));
            }
            subnets.push(subnet.into());
        }
    }
    let mut nic = json!({
        "type": "physical",
        "name": plan.nic.link,
        "mac_address": plan.nic.mac,
        "mtu": plan.nic.mtu,
        "subnets": subnets,
    });
    let is_plain = plan.is_plain(Family::V4) && plan.is_plain(Family::V6);
    if is_plain && plan.ignores_routers() {
        nic["accept-ra"] = json!(false);
    }
    nic
}

fn v1_route(route: &tapmanager::wire::Route) -> Value {
    match route.dst {
        ipnet::IpNet::V4(net) => {
            json!({"network": net.network(), "netmask": net.netmask(), "gateway": route.gw})
        }
        ipnet::IpNet::V6(net) => json!({"network": net.to_string(), "gateway": route.gw}),
    }
}
