//! Link-local addresses of the pod's gateways, which the node itself most often is.
//!
//! Invariant: an address that is link-local already is its own answer; others are looked up among the
//! addresses of the node's links and belong to the link that has them.
//! Failure: a gateway that is no link of the node is not in the answer.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::namespace::Namespace;
use crate::netlink::{Error, Kernel};

/// The link-local address of each of `hops` that has a known one.
pub(super) async fn link_locals(
    node: &Namespace,
    hops: &[Ipv6Addr],
) -> Result<BTreeMap<Ipv6Addr, Ipv6Addr>, Error> {
    let mut known = BTreeMap::new();
    let (own, others): (Vec<_>, Vec<_>) = hops.iter().partition(|hop| hop.is_unicast_link_local());
    known.extend(own.into_iter().map(|hop| (hop, hop)));
    if !others.is_empty() {
        let all = Kernel::open(node).await?.ipv6_addresses().await?;
        known.extend(
            others
                .into_iter()
                .filter_map(|hop| Some((hop, neighbour(&all, hop)?))),
        );
    }
    Ok(known)
}

/// The first link-local address on the link that has `hop`.
fn neighbour(all: &[(u32, Ipv6Addr)], hop: Ipv6Addr) -> Option<Ipv6Addr> {
    let (link, _) = all.iter().find(|(_, address)| *address == hop)?;
    let same = all.iter().filter(|(index, _)| index == link);
    same.map(|(_, address)| *address)
        .find(Ipv6Addr::is_unicast_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_of_the_link_that_has_the_gateway() {
        let all = [
            (2, "fe80::2"),
            (3, "fd00::1"),
            (3, "fe80::3"),
            (4, "fd01::1"),
        ]
        .map(|(link, text)| (link, text.parse().unwrap()));
        let find = |text: &str| neighbour(&all, text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(find("fd00::1").as_deref(), Some("fe80::3"));
        assert_eq!(find("fd01::1"), None);
        assert_eq!(find("fd02::1"), None);
    }
}
