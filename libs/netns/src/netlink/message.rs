//! Converts between netlink messages and our own types.
//!
//! Invariant: what is read here and written back says the same to the kernel.
//! Failure: messages about things that we do not handle (multicast, MPLS, several next hops) become
//! `None`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
    RouteVia,
};
use rtnetlink::packet_route::rule::{RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, address::AddressScope};

use super::{Address, Link, LinkKind, Route, Rule};
use crate::mac::Mac;

const TABLE_LOCAL: u32 = 255;
const TABLE_DEFAULT: u32 = 253;

pub(super) fn link(message: LinkMessage) -> Link {
    let header = message.header;
    let mut link = Link {
        index: header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        kind: LinkKind::Device,
        up: header.flags.contains(LinkFlags::Up),
        bridge: None,
        pci: None,
    };
    let mut bus = String::new();
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(index) => link.bridge = Some(index),
            LinkAttribute::ParentDevName(name) => link.pci = Some(name),
            LinkAttribute::ParentDevBusName(name) => bus = name,
            LinkAttribute::Address(bytes) if header.link_layer_type == LinkLayerType::Ether => {
                link.mac = <[u8; 6]>::try_from(bytes).ok().map(Mac::new);
            }
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        link.kind = link_kind(&kind);
                    }
                }
            }
            _ => {}
        }
    }
    link.pci = link.pci.filter(|_| bus == "pci");
    if header.flags.contains(LinkFlags::Loopback) {
        link.kind = LinkKind::Loopback;
    } else if header.link_layer_type != LinkLayerType::Ether {
        link.kind = LinkKind::Tunnel;
    }
    link
}

fn link_kind(kind: &InfoKind) -> LinkKind {
    match kind {
        InfoKind::Veth => LinkKind::Veth,
        InfoKind::Bridge => LinkKind::Bridge,
        InfoKind::Tun => LinkKind::Tun,
        // Loading their modules puts one of each into every namespace, Ethernet or not.
        InfoKind::GreTap | InfoKind::GreTap6 | InfoKind::ErSpan | InfoKind::Ip6ErSpan => {
            LinkKind::Tunnel
        }
        other => LinkKind::Other(other.to_string()),
    }
}

/// `None` for IPv6 link-local addresses, which the kernel makes for itself.
pub(super) fn address(message: &AddressMessage) -> Option<Address> {
    let find = |local: bool| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(ip) if local => Some(*ip),
                AddressAttribute::Address(ip) if !local => Some(*ip),
                _ => None,
            })
    };
    // On IPv4 "local" is the address and "address" the peer; IPv6 has "address" alone.
    let ip = find(true).or_else(|| find(false))?;
    if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return None;
    }
    let net = IpNet::new(ip, message.header.prefix_len).ok()?;
    Some(Address {
        net,
        scope: u8::from(message.header.scope),
    })
}

/// The index of the link and its IPv6 address.
pub(super) fn ipv6_address(message: &AddressMessage) -> Option<(u32, Ipv6Addr)> {
    let ip = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Address(IpAddr::V6(ip)) => Some(*ip),
            _ => None,
        })?;
    Some((message.header.index, ip))
}

pub(super) fn address_message(index: u32, address: Address) -> AddressMessage {
    let ip = address.net.addr();
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    message.header.prefix_len = address.net.prefix_len();
    message.header.scope = AddressScope::from(address.scope);
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    if let IpNet::V4(net) = address.net
        && net.prefix_len() < 31
    {
        message
            .attributes
            .push(AddressAttribute::Broadcast(net.broadcast()));
    }
    message
}

/// The route with the index of its link; `None` for what is no plain unicast route.
pub(super) fn route(message: &RouteMessage) -> Option<(u32, Route)> {
    let header = &message.header;
    if header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut index = None;
    let mut route = Route {
        dst: match header.address_family {
            AddressFamily::Inet => IpNet::new(Ipv4Addr::UNSPECIFIED.into(), 0).ok()?,
            AddressFamily::Inet6 => IpNet::new(Ipv6Addr::UNSPECIFIED.into(), 0).ok()?,
            _ => return None,
        },
        gateway: None,
        source: None,
        metric: 0,
        scope: u8::from(header.scope),
        protocol: u8::from(header.protocol),
        table: u32::from(header.table),
        onlink: header.flags.contains(RouteFlags::Onlink),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(to) => {
                route.dst = IpNet::new(ip(to)?, header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Gateway(to) => route.gateway = Some(ip(to)?),
            RouteAttribute::Via(RouteVia::Inet6(to)) => route.gateway = Some((*to).into()),
            RouteAttribute::PrefSource(from) => route.source = Some(ip(from)?),
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Oif(oif) => index = Some(*oif),
            RouteAttribute::MultiPath(_) => return None,
            _ => {}
        }
    }
    let multicast = matches!(route.dst.addr(), IpAddr::V6(ip) if ip.is_multicast());
    let link_local = matches!(route.dst.addr(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    if route.table == TABLE_LOCAL || multicast || link_local {
        return None;
    }
    Some((index?, route))
}

/// A route that [`route`] does not read although it changes where packets go, in words.
pub(super) fn special_route(message: &RouteMessage) -> Option<String> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let mut to = None;
    let mut has_many_hops = false;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(destination) => to = ip(destination),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::MultiPath(_) => has_many_hops = true,
            _ => {}
        }
    }
    let kind = match header.kind {
        RouteType::Unicast if has_many_hops => "several next hops to",
        RouteType::BlackHole => "blackhole",
        RouteType::Unreachable => "unreachable",
        RouteType::Prohibit => "prohibit",
        RouteType::Throw => "throw",
        _ => return None,
    };
    if table == TABLE_LOCAL || header.protocol == RouteProtocol::Kernel {
        return None;
    }
    let to = match to {
        Some(to) => format!("{to}/{}", header.destination_prefix_length),
        None => "default".to_owned(),
    };
    Some(format!("{kind} {to} in table {table}"))
}

/// `None` for the rules that every namespace has.
pub(super) fn rule(message: &RuleMessage) -> Option<Rule> {
    let header = &message.header;
    let mut rule = Rule {
        priority: 0,
        table: u32::from(header.table),
    };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(table) => rule.table = *table,
            _ => {}
        }
    }
    let is_general = header.src_len == 0 && header.dst_len == 0;
    let is_usual = matches!(
        (rule.priority, rule.table),
        (0, TABLE_LOCAL) | (32_766, Route::MAIN_TABLE) | (32_767, TABLE_DEFAULT)
    );
    (!(is_general && is_usual)).then_some(rule)
}

/// Name of a link of a pair, and the index of its other end, which is in another namespace.
pub(super) fn end_elsewhere(message: &LinkMessage) -> Option<(String, u32)> {
    let mut name = None;
    let mut end = None;
    let mut is_elsewhere = false;
    let mut is_pair = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(found) => name = Some(found.clone()),
            LinkAttribute::Link(index) => end = Some(*index),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                is_pair = infos.iter().any(|info| match info {
                    LinkInfo::Kind(InfoKind::Veth) => true,
                    LinkInfo::Kind(other) => other.to_string() == "netkit",
                    _ => false,
                });
            }
            _ => {}
        }
    }
    if is_elsewhere && is_pair {
        name.zip(end)
    } else {
        None
    }
}

/// The indices of all links that a route leads over.
pub(super) fn outputs(message: &RouteMessage) -> Vec<u32> {
    let hops = message
        .attributes
        .iter()
        .flat_map(|attribute| match attribute {
            RouteAttribute::MultiPath(hops) => hops.as_slice(),
            _ => &[],
        });
    let hops = hops.map(|hop| hop.interface_index);
    output(message).into_iter().chain(hops).collect()
}

/// The index of the link that a route leads over.
pub(super) fn output(message: &RouteMessage) -> Option<u32> {
    let mut attributes = message.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

/// `None` when destination and next hop are of families that do not go together.
pub(super) fn route_message(index: u32, route: &Route) -> Option<RouteMessage> {
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.dst.addr(), route.dst.prefix_len())
        .ok()?
        .output_interface(index)
        .table_id(route.table)
        .protocol(RouteProtocol::from(route.protocol))
        .scope(RouteScope::from(route.scope));
    if let Some(gateway) = route.gateway {
        builder = builder.gateway(gateway).ok()?;
    }
    if let Some(source) = route.source {
        builder = builder.pref_source(source).ok()?;
    }
    if route.metric != 0 {
        builder = builder.priority(route.metric);
    }
    if route.onlink {
        builder = builder.onlink();
    }
    Some(builder.build())
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_written_and_read_again_is_the_same() {
        let route = Route {
            dst: "10.0.0.0/8".parse().unwrap(),
            gateway: Some("169.254.1.1".parse().unwrap()),
            source: Some("10.1.2.3".parse().unwrap()),
            metric: 17,
            scope: 0,
            protocol: 3,
            table: 254,
            onlink: true,
        };
        let message = route_message(5, &route).unwrap();
        assert_eq!(super::route(&message), Some((5, route)));
    }

    #[test]
    fn an_address_written_and_read_again_is_the_same() {
        for net in ["10.1.2.3/24", "169.254.254.1/32", "fd00::7/64"] {
            let address = Address {
                net: net.parse().unwrap(),
                scope: 253,
            };
            assert_eq!(super::address(&address_message(3, address)), Some(address));
        }
    }

    #[test]
    fn link_local_addresses_of_ipv6_are_left_to_the_kernel() {
        let address = Address {
            net: "fe80::1/64".parse().unwrap(),
            scope: 253,
        };
        assert_eq!(super::address(&address_message(3, address)), None);
    }

    #[test]
    fn rules_that_every_namespace_has_do_not_count() {
        let read = |priority, table, from| {
            let mut message = RuleMessage::default();
            message.header.src_len = from;
            message.attributes = vec![
                RuleAttribute::Priority(priority),
                RuleAttribute::Table(table),
            ];
            rule(&message)
        };
        for usual in [(0, 255), (32_766, 254), (32_767, 253)] {
            assert_eq!(read(usual.0, usual.1, 0), None);
        }
        let expected = |priority, table| Some(Rule { priority, table });
        assert_eq!(read(1000, 100, 0), expected(1000, 100));
        assert_eq!(read(32_766, 254, 24), expected(32_766, 254));
    }
}
