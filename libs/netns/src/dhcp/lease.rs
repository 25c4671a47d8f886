//! The configuration of one NIC, and the DHCP options with it.
//!
//! Invariant: a client that follows the options reaches its gateway even when that is outside its
//! subnet, because an on-link route to it precedes every route that uses it.
//! Failure: what does not fit an option (a bad name, a huge MTU) is left out, never cut.

use std::net::Ipv4Addr;

use dhcproto::Name;
use dhcproto::v4::{DhcpOption, OptionCode};
use ipnet::Ipv4Net;

use crate::mac::Mac;

/// Seconds a lease is good for.
pub(super) const LEASE_SECONDS: u32 = 86_400;
/// Seconds after which the client asks to keep it.
pub(super) const RENEW_SECONDS: u32 = 43_200;
/// Seconds after which the client requests from any server.
pub(super) const REBIND_SECONDS: u32 = 64_800;

/// The configuration of one NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The NIC; no other client gets an answer.
    pub mac: Mac,
    /// Its address with the prefix of its subnet.
    pub address: Ipv4Net,
    /// The next hop of the default route.
    pub gateway: Option<Ipv4Addr>,
    /// Further routes; without a next hop the destination is on the link.
    pub routes: Vec<(Ipv4Net, Option<Ipv4Addr>)>,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Name servers; the option is left out when there are none.
    pub dns: Vec<Ipv4Addr>,
    /// Domains to search; names that are none are left out.
    pub searches: Vec<String>,
    /// Host name to offer.
    pub hostname: Option<String>,
}

impl Lease {
    /// Options about the network, in the order of their importance.
    pub(super) fn options(&self, requested: Option<&[OptionCode]>) -> Vec<DhcpOption> {
        let mut options = vec![DhcpOption::SubnetMask(self.address.netmask())];
        let classless = self.classless_routes();
        // Clients must ignore the router when they understand classless routes (RFC 3442), so it is
        // there only for those that do not request them.
        let understands =
            requested.is_none_or(|list| list.contains(&OptionCode::ClasslessStaticRoute));
        if let Some(gateway) = self.gateway
            && (classless.is_empty() || !understands)
        {
            options.push(DhcpOption::Router(vec![gateway]));
        }
        if !classless.is_empty() {
            options.push(DhcpOption::ClasslessStaticRoute(classless));
        }
        // RFC 2132 sets the lower limit.
        if let Ok(mtu) = u16::try_from(self.mtu)
            && mtu >= 68
        {
            options.push(DhcpOption::InterfaceMtu(mtu));
        }
        if !self.dns.is_empty() {
            options.push(DhcpOption::DomainNameServer(self.dns.clone()));
        }
        if let Some(name) = self.hostname.as_ref().filter(|name| is_host_name(name)) {
            options.push(DhcpOption::Hostname(name.clone()));
        }
        let searches: Vec<Name> = self
            .searches
            .iter()
            .filter_map(|name| domain(name))
            .collect();
        if !searches.is_empty() {
            options.push(DhcpOption::DomainSearch(searches));
        }
        options
    }

    /// Empty when mask and router say everything.
    fn classless_routes(&self) -> Vec<(Ipv4Net, Ipv4Addr)> {
        let subnet = self.address.trunc();
        let further: Vec<_> = self
            .routes
            .iter()
            // A default route without a next hop is one, too, if there is no better one.
            .filter(|(dst, hop)| {
                let default = dst.prefix_len() == 0;
                *dst != subnet && (!default || hop.is_none() && self.gateway.is_none())
            })
            .collect();
        let outside = |hop: Ipv4Addr| !subnet.contains(&hop);
        if further.is_empty() && !self.gateway.is_some_and(outside) {
            return Vec::new();
        }
        let on_link = Ipv4Addr::UNSPECIFIED;
        let mut routes: Vec<(Ipv4Net, Ipv4Addr)> = further
            .iter()
            .filter(|(_, hop)| hop.is_none())
            .map(|(dst, _)| (dst.trunc(), on_link))
            .collect();
        for hop in further
            .iter()
            .filter_map(|(_, hop)| *hop)
            .chain(self.gateway)
        {
            if outside(hop)
                && !routes
                    .iter()
                    .any(|(dst, via)| *via == on_link && dst.contains(&hop))
            {
                routes.push((Ipv4Net::from(hop), on_link));
            }
        }
        routes.extend(
            further
                .iter()
                .filter_map(|(dst, hop)| Some((dst.trunc(), (*hop)?))),
        );
        if let Some(gateway) = self.gateway {
            routes.push((Ipv4Net::default(), gateway));
        }
        routes
    }
}

pub(crate) fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

pub(crate) fn domain(name: &str) -> Option<Name> {
    let bare = name.strip_suffix('.').unwrap_or(name);
    let plain = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if bare.len() > 253 || !bare.split('.').all(plain) {
        return None;
    }
    // With the final dot the name is encoded down to the root, terminator included.
    Name::from_ascii(format!("{bare}.")).ok()
}
