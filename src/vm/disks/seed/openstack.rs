//! OpenStack's description of a network, for a config drive.
//!
//! Invariant: the shape is that of `network_data.json`: links, networks that refer to them, and
//! services.
//! Failure: none. What the shape cannot express is left to DHCP; it has no place for the search
//! list.

use ipnet::IpNet;
use serde_json::{Value, json};
use tapmanager::wire::{Network, Route};

use super::network::servers;
use super::plan::{Family, Plan, plans};

/// `network_data.json`.
pub(super) fn network_data(network: Option<&Network>, dhcp: bool) -> Value {
    let plans = plans(network, dhcp);
    let links: Vec<_> = plans.iter().map(link).collect();
    let networks = plans.iter().flat_map(networks).enumerate();
    let networks: Vec<_> = networks
        .map(|(n, mut network)| {
            network["id"] = json!(format!("network{n}"));
            network["network_id"] = json!(format!("net-{n}"));
            network
        })
        .collect();
    let servers = servers(network).into_iter();
    let services: Vec<_> = servers
        .map(|address| json!({"type": "dns", "address": address}))
        .collect();
    json!({"links": links, "networks": networks, "services": services})
}

fn link(plan: &Plan<'_>) -> Value {
    json!({
        "id": plan.nic.link,
        "type": "phy",
        "ethernet_mac_address": plan.nic.mac,
        "mtu": plan.nic.mtu,
    })
}

fn networks(plan: &Plan<'_>) -> Vec<Value> {
    let mut all = Vec::new();
    for (family, dhcp) in [(Family::V4, "ipv4_dhcp"), (Family::V6, "ipv6_dhcp")] {
        if plan.has_dhcp(family) || !plan.is_plain(family) {
            all.push(json!({"link": plan.nic.link, "type": dhcp}));
            continue;
        }
        for (index, net) in plan.nets(family).enumerate() {
            let routes: Vec<_> = plan.routes_of(net, index == 0).map(route).collect();
            all.push(json!({
                "link": plan.nic.link,
                "type": if family == Family::V4 { "ipv4" } else { "ipv6" },
                "ip_address": net.addr(),
                "netmask": net.netmask(),
                "routes": routes,
            }));
        }
    }
    all
}

fn route(route: &Route) -> Value {
    let dst: IpNet = route.dst;
    json!({"network": dst.network(), "netmask": dst.netmask(), "gateway": route.gw})
}
