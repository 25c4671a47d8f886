//! Link-local addresses of the pod's gateways, which the node itself most often is.
//!
//! Invariant: an address that is link-local already is its own answer; others are looked up among
//! the addresses of the node's links. Plugins that give each pod a link of its own (`ptp`) put the
//! same gateway on all of them: then the link counts over which the node reaches the pod.
//! Failure: a gateway that is on no link of the node is not in the answer.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use super::lease::Lease;
use crate::namespace::Namespace;
use crate::netlink::{Error, Kernel};

/// The link-local address of each next hop of `lease` that has a known one.
pub(super) async fn link_locals(
    node: &Namespace,
    lease: &Lease,
) -> Result<BTreeMap<Ipv6Addr, Ipv6Addr>, Error> {
    let mut known = BTreeMap::new();
    let hops = lease.hops();
    let (own, others): (Vec<_>, Vec<_>) = hops.iter().partition(|hop| hop.is_unicast_link_local());
    known.extend(own.into_iter().map(|hop| (hop, hop)));
    if others.is_empty() {
        return Ok(known);
    }
    let net = Kernel::open(node).await?;
    let all = net.ipv6_addresses().await?;
    let mut towards = None;
    if let Some(address) = lease.addresses.first() {
        towards = net.link_towards(address.addr()).await?;
    }
    known.extend(
        others
            .into_iter()
            .filter_map(|hop| Some((hop, neighbour(&all, hop, towards)?))),
    );
    Ok(known)
}

/// A link-local address on the link that has `hop`: on the link `towards` the pod, if several have
/// it.
fn neighbour(all: &[(u32, Ipv6Addr)], hop: Ipv6Addr, towards: Option<u32>) -> Option<Ipv6Addr> {
    let having = all.iter().filter(|(_, address)| *address == hop);
    let links: Vec<u32> = having.map(|(link, _)| *link).collect();
    let wanted = links.iter().find(|link| Some(**link) == towards);
    let link = wanted.or(links.first())?;
    let same = all.iter().filter(|(index, _)| index == link);
    same.map(|(_, address)| *address)
        .find(Ipv6Addr::is_unicast_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_of_the_link_that_has_the_gateway_and_leads_to_the_pod() {
        let all = [
            (2, "fe80::2"),
            (3, "fd00::1"),
            (3, "fe80::3"),
            (4, "fd01::1"),
            (5, "fd00::1"),
            (5, "fe80::5"),
        ]
        .map(|(link, text)| (link, text.parse().unwrap()));
        let find = |text: &str, towards| {
            let found = neighbour(&all, text.parse().unwrap(), towards);
            found.map(|ip| ip.to_string())
        };
        assert_eq!(find("fd00::1", None).as_deref(), Some("fe80::3"));
        assert_eq!(find("fd00::1", Some(5)).as_deref(), Some("fe80::5"));
        assert_eq!(find("fd00::1", Some(2)).as_deref(), Some("fe80::3"));
        assert_eq!(find("fd01::1", None), None);
        assert_eq!(find("fd02::1", None), None);
    }
}
