//! Addresses that images are fetched from.
//!
//! Invariant: a connection goes to an address that was checked, and to no other: the client gets
//! its addresses from [`Guard`], once for each connection, and an address in a URL is checked
//! before the request and at each redirect. Loopback, link-local, multicast, reserved and metadata
//! addresses and the node's own are refused in every spelling, unless the settings allow them.
//! Failure: [`Refused`], which looks the same for every address, whatever listens there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Metadata services of clouds at addresses that are otherwise ordinary.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether images are fetched from private addresses (RFC 1918, RFC 6598, RFC 4193).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Private {
    /// As from public ones.
    Allow,
    /// Only from those that the settings list.
    Refuse,
}

/// An address that images are not fetched from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address is not one that images are fetched from")]
pub(super) struct Refused;

/// Decides about addresses; clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    allowed: Arc<[IpNet]>,
    private: Private,
}

impl Guard {
    pub(super) fn new(allowed: &[IpNet], private: Private) -> Self {
        Self {
            allowed: allowed.into(),
            private,
        }
    }

    /// Refuses a URL whose host is an address that is refused. Names are checked when the client
    /// resolves them.
    pub(super) fn check_url(&self, url: &Url) -> Result<(), Refused> {
        let host = url.host_str().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        match literal.parse() {
            Ok(address) => self.check(address, &own_addresses()?),
            Err(_) => Ok(()),
        }
    }

    fn check(&self, address: IpAddr, own: &[IpAddr]) -> Result<(), Refused> {
        let address = embedded(address);
        let allowed = self.allowed.iter().any(|net| net.contains(&address));
        let refused = is_special(address)
            || METADATA.contains(&address)
            || own.contains(&address)
            || (self.private == Private::Refuse && is_private(address));
        if refused && !allowed {
            Err(Refused)
        } else {
            Ok(())
        }
    }

    /// The addresses of a name that may be used.
    fn admit(&self, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, Refused> {
        let own = own_addresses()?;
        let usable = |found: &SocketAddr| self.check(found.ip(), &own).is_ok();
        let usable: Vec<_> = found.filter(usable).collect();
        if usable.is_empty() {
            Err(Refused)
        } else {
            Ok(usable)
        }
    }
}

/// The client connects to what this returns, without another look at the name.
impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<_> = found.collect();
            let admit = move || guard.admit(found.into_iter());
            let usable = tokio::task::spawn_blocking(admit).await??;
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

/// Of addresses that a tenant may have chosen, those that are neither the node's own nor special: a
/// program in the node's network may connect to them for him. Blocks.
pub(crate) fn foreign_only(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let guard = Guard::new(&[], Private::Allow);
    let own = own_addresses().ok();
    addresses.retain(|address| {
        own.as_ref()
            .is_some_and(|own| guard.check(*address, own).is_ok())
    });
    addresses
}

/// Whether a request failed because of [`Refused`].
pub(super) fn is_refused(error: &reqwest::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if current.is::<Refused>() {
            return true;
        }
        next = current.source();
    }
    false
}

/// The IPv4 address that an IPv6 address stands for: mapped, compatible, NAT64 or 6to4.
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(long) = address else {
        return address;
    };
    let from = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match long.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => from(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => from(high, low),
        [0x2002, high, low, ..] => from(high, low),
        _ => address,
    }
}

/// Addresses that no server of images has.
const fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            first == 0
                || first >= 240
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
        }
        IpAddr::V6(address) => {
            // Site-local addresses are private ones of an earlier time.
            let site_local = address.segments()[0] & 0xffc0 == 0xfec0;
            address.is_unspecified()
                || address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_multicast()
                || site_local
        }
    }
}

const fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

/// The addresses of the node's interfaces now. Where they are unknown, every address is refused.
fn own_addresses() -> Result<Vec<IpAddr>, Refused> {
    let interfaces = match nix::ifaddrs::getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!(%error, "node addresses not listed: connections refused");
            return Err(Refused);
        }
    };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let short = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        short.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    Ok(interfaces.filter_map(address).collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn guard(allowed: &[&str], private: Private) -> Guard {
        let nets: Vec<IpNet> = allowed.iter().map(|net| net.parse().unwrap()).collect();
        Guard::new(&nets, private)
    }

    #[rstest]
    #[case::loopback("127.0.0.1")]
    #[case::loopback_net("127.8.9.10")]
    #[case::unspecified("0.0.0.0")]
    #[case::this_net("0.1.2.3")]
    #[case::link_local("169.254.169.254")]
    #[case::multicast("224.0.0.1")]
    #[case::reserved("240.0.0.1")]
    #[case::broadcast("255.255.255.255")]
    #[case::v6_loopback("::1")]
    #[case::v6_unspecified("::")]
    #[case::v6_link_local("fe80::1")]
    #[case::v6_site_local("fec0::1")]
    #[case::v6_multicast("ff02::1")]
    #[case::mapped("::ffff:127.0.0.1")]
    #[case::mapped_metadata("::ffff:169.254.169.254")]
    #[case::compatible("::127.0.0.1")]
    #[case::nat64("64:ff9b::a9fe:a9fe")]
    #[case::six_to_four("2002:7f00:1::1")]
    #[case::aws("fd00:ec2::254")]
    #[case::alibaba("100.100.100.200")]
    #[case::azure("168.63.129.16")]
    #[case::own("203.0.113.7")]
    #[case::own_mapped("::ffff:203.0.113.7")]
    fn what_no_image_server_has_is_refused_until_allowed(#[case] address: &str) {
        let own = ["203.0.113.7".parse().unwrap()];
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(
            guard(&[], Private::Allow).check(address, &own),
            Err(Refused)
        );
        let net = IpNet::from(embedded(address)).to_string();
        let open = guard(&[&net], Private::Refuse);
        assert_eq!(open.check(address, &own), Ok(()));
    }

    #[rstest]
    #[case("10.1.2.3")]
    #[case("172.16.0.1")]
    #[case("192.168.1.1")]
    #[case("100.64.0.1")]
    #[case("fc00::1")]
    #[case("::ffff:10.1.2.3")]
    fn private_addresses_are_as_configured(#[case] address: &str) {
        let address = address.parse().unwrap();
        assert_eq!(guard(&[], Private::Allow).check(address, &[]), Ok(()));
        assert_eq!(
            guard(&[], Private::Refuse).check(address, &[]),
            Err(Refused)
        );
    }

    #[rstest]
    #[case("198.51.100.1")]
    #[case("100.128.0.1")]
    #[case("172.32.0.1")]
    #[case("2001:db8::1")]
    fn public_addresses_are_never_refused(#[case] address: &str) {
        let address = address.parse().unwrap();
        assert_eq!(guard(&[], Private::Refuse).check(address, &[]), Ok(()));
    }

    #[rstest]
    #[case("http://127.1/")]
    #[case("http://0x7f000001/")]
    #[case("http://2130706433/")]
    #[case("http://017700000001/")]
    #[case("http://[::ffff:7f00:1]/")]
    #[case("http://[::1]:80/")]
    fn every_spelling_of_an_address_in_a_url_is_the_address(#[case] url: &str) {
        let guard = guard(&[], Private::Allow);
        assert_eq!(guard.check_url(&Url::parse(url).unwrap()), Err(Refused));
    }

    #[test]
    fn the_addresses_of_the_interfaces_are_the_nodes_own() {
        let own = own_addresses().unwrap();
        assert!(own.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{own:?}");
    }

    #[test]
    fn connections_for_tenants_go_to_foreign_addresses_only() {
        let found = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "fe80::1"];
        let found = found.map(|address| address.parse().unwrap()).to_vec();
        let expected: IpAddr = "10.1.2.3".parse().unwrap();
        assert_eq!(foreign_only(found), [expected]);
    }

    #[test]
    fn a_name_keeps_the_addresses_that_may_be_used() {
        let guard = guard(&[], Private::Allow);
        let found = ["127.0.0.1:0", "198.51.100.1:0", "[::1]:0"];
        let found = found.map(|address| address.parse::<SocketAddr>().unwrap());
        assert_eq!(guard.admit(found.into_iter()), Ok(vec![found[1]]));
        assert_eq!(guard.admit(found[..1].iter().copied()), Err(Refused));
    }
}
