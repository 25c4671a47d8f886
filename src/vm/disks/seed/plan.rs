//! What each NIC of a guest is to be configured with, whatever the format.
//!
//! Invariant: a NIC has at most one default route of a family; a route that the kernel makes for an
//! address, or that leads only to a router of another route, is left out.
//! Failure: none.

use std::net::IpAddr;

use ipnet::IpNet;
use tapmanager::wire::{Network, Nic, Route};

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// The configuration of one NIC.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    /// The NIC.
    pub(super) nic: &'a Nic,
    dhcp: bool,
    routes: Vec<Route>,
}

/// A plan for each NIC of the guest; with `dhcp` no address is fixed.
pub(super) fn plans(network: Option<&Network>, dhcp: bool) -> Vec<Plan<'_>> {
    let nics = network.map_or(&[][..], Network::guest_nics);
    let plan = |nic| Plan {
        nic,
        dhcp,
        routes: routes(nic),
    };
    nics.iter().map(plan).collect()
}

impl Family {
    /// That of an address.
    pub(super) const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl Plan<'_> {
    /// Whether the guest is to request its configuration.
    pub(super) fn has_dhcp(&self, family: Family) -> bool {
        let mut families = self
            .nic
            .addresses
            .iter()
            .map(|a| Family::from_ip(a.net.addr()));
        let has_family = families.any(|of| of == family);
        (self.dhcp && has_family) || (self.is_unconfigured() && family == Family::V4)
    }

    /// Whether the network gives the NIC no address.
    pub(super) fn is_unconfigured(&self) -> bool {
        self.nic.addresses.is_empty()
    }

    /// Whether no router has anything to add to the fixed addresses and routes. systemd-networkd
    /// reports a network as online only when a router has answered, or none has for 12 s.
    pub(super) fn ignores_routers(&self) -> bool {
        self.addresses().next().is_some()
    }

    /// The fixed addresses, the primary one first.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpNet> + '_ {
        let all = self.nic.addresses.iter().map(|address| address.net);
        all.filter(|_| !self.dhcp)
    }

    /// The fixed addresses of a family.
    pub(super) fn nets(&self, family: Family) -> impl Iterator<Item = IpNet> + '_ {
        let all = self.addresses();
        all.filter(move |net| Family::from_ip(net.addr()) == family)
    }

    /// The routes beside fixed addresses.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|_| !self.dhcp)
    }

    /// Whether the routers of a family are neighbours by the addresses alone: some formats know no
    /// others.
    pub(super) fn is_plain(&self, family: Family) -> bool {
        let mut routes = self
            .routes()
            .filter(|route| Family::from_ip(route.dst.addr()) == family);
        routes.all(|route| route.gw.is_some_and(|gw| self.reaches(gw)))
    }

    /// The routes by way of routers in a net of the NIC; the first net of a family has those of
    /// link-local routers, too.
    pub(super) fn routes_of(&self, net: IpNet, is_first: bool) -> impl Iterator<Item = &Route> {
        self.routes().filter(move |route| {
            let same_family = Family::from_ip(route.dst.addr()) == Family::from_ip(net.addr());
            let through = |gw: IpAddr| match self.first_net(gw) {
                Some(first) => first == net,
                None => is_first,
            };
            same_family && route.gw.is_some_and(through)
        })
    }

    /// Whether a router is a neighbour by the addresses alone.
    pub(super) fn reaches(&self, gw: IpAddr) -> bool {
        let is_link_local = matches!(gw, IpAddr::V6(gw) if gw.is_unicast_link_local());
        is_link_local || self.first_net(gw).is_some()
    }

    fn first_net(&self, gw: IpAddr) -> Option<IpNet> {
        self.addresses().find(|net| net.contains(&gw))
    }
}

fn routes(nic: &Nic) -> Vec<Route> {
    let is_subnet = |dst: IpNet| nic.addresses.iter().any(|a| a.net.trunc() == dst);
    let is_router = |dst: IpNet| {
        let is_host = dst.prefix_len() == dst.max_prefix_len();
        is_host && nic.routes.iter().any(|route| route.gw == Some(dst.addr()))
    };
    let mut kept: Vec<Route> = Vec::new();
    for route in &nic.routes {
        let family = Family::from_ip(route.dst.addr());
        let is_of_other_family = route.gw.is_some_and(|gw| Family::from_ip(gw) != family);
        let is_implied = route.gw.is_none() && (is_subnet(route.dst) || is_router(route.dst));
        let is_second = route.dst.prefix_len() == 0 && kept.iter().any(|r| r.dst == route.dst);
        if !(is_of_other_family || is_implied || is_second) {
            kept.push(*route);
        }
    }
    kept
}
