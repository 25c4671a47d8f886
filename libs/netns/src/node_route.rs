//! Where the node's routes lead for the address of a pod.
//!
//! A program in the node's network that connects for a tenant must reach his pod, and not what has
//! the address elsewhere: another node, a pod of another tenant, a service. The route decides that,
//! whatever the plugin says about the address.
//!
//! Invariant: [`NodeRoute::Own`] names the node's end of the pod's own link, or the bridge that it is
//! a port of. A route over an uplink, a tunnel, a device of the hardware, or the link of another pod
//! is [`NodeRoute::Elsewhere`].
//! Failure: [`Error`] when the kernel does not answer.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::Namespace;
use crate::netlink::{Error, Kernel, Link, LinkKind};

/// Where the node sends what is for an address of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRoute {
    /// To this link of the node, which leads to the pod, or to its bridge.
    Own(String),
    /// To a link of a plugin whose switch leads to all pods of the node.
    Switch,
    /// Somewhere else, or nowhere.
    Elsewhere,
}

/// The node's links as far as they matter here.
#[derive(Debug, Default)]
struct Links {
    all: Vec<Link>,
    /// Those with the other end in another namespace.
    of_pods: HashSet<u32>,
    /// Those of default routes.
    uplinks: HashSet<u32>,
}

/// Where the routes of `node` lead for `addresses` of the link `name` in the namespace of a pod.
///
/// # Errors
/// When the kernel does not answer.
pub async fn node_routes(
    node: &Namespace,
    pod: &Namespace,
    name: &str,
    addresses: &[IpAddr],
) -> Result<Vec<NodeRoute>, Error> {
    let end = Kernel::open(pod).await?.end_elsewhere(name).await?;
    let kernel = Kernel::open(node).await?;
    let links = Links {
        all: crate::netlink::Netlink::links(&kernel).await?,
        of_pods: kernel.links_elsewhere().await?,
        uplinks: kernel.uplinks().await?,
    };
    let mut routes = Vec::with_capacity(addresses.len());
    for address in addresses {
        let towards = kernel.link_towards(*address).await?;
        routes.push(links.judge(end, towards));
    }
    Ok(routes)
}

impl Links {
    /// What a route over the link `towards` is for the pod whose link has its other end at `end`.
    fn judge(&self, end: Option<u32>, towards: Option<u32>) -> NodeRoute {
        let Some(towards) = towards.and_then(|index| self.find(index)) else {
            return NodeRoute::Elsewhere;
        };
        // A link of this number may be one of another namespace.
        let end = end.and_then(|index| self.find(index));
        let end = end.filter(|end| self.of_pods.contains(&end.index));
        let bridge = end.and_then(|end| self.find(end.bridge?));
        let bridge = bridge.filter(|bridge| bridge.kind == LinkKind::Bridge);
        let is_own = |own: Option<&Link>| own.is_some_and(|own| own.index == towards.index);
        if is_own(end) || is_own(bridge) {
            return NodeRoute::Own(towards.name.clone());
        }
        let is_switch = match &towards.kind {
            LinkKind::Veth => !self.of_pods.contains(&towards.index),
            LinkKind::Other(kind) => kind == "openvswitch",
            _ => false,
        };
        // Where the kernel's bridge has the pod, nothing else leads to it.
        if is_switch && bridge.is_none() && !self.uplinks.contains(&towards.index) {
            return NodeRoute::Switch;
        }
        NodeRoute::Elsewhere
    }

    fn find(&self, index: u32) -> Option<&Link> {
        self.all.iter().find(|link| link.index == index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPLINK: u32 = 2;
    const BRIDGE: u32 = 3;
    const PORT: u32 = 4;
    const ROUTED: u32 = 5;
    const SWITCH: u32 = 6;
    const STORAGE: u32 = 7;
    const OVERLAY: u32 = 8;
    const OVS: u32 = 9;

    fn link(index: u32, kind: LinkKind, bridge: Option<u32>) -> Link {
        Link {
            index,
            name: format!("link{index}"),
            mac: None,
            mtu: 1500,
            kind,
            up: true,
            bridge,
            pci: None,
        }
    }

    fn links() -> Links {
        let other = |kind: &str| LinkKind::Other(kind.to_owned());
        Links {
            all: vec![
                link(1, LinkKind::Loopback, None),
                link(UPLINK, LinkKind::Device, None),
                link(BRIDGE, LinkKind::Bridge, None),
                link(PORT, LinkKind::Veth, Some(BRIDGE)),
                link(ROUTED, LinkKind::Veth, None),
                link(SWITCH, LinkKind::Veth, None),
                link(STORAGE, LinkKind::Device, None),
                link(OVERLAY, other("vxlan"), None),
                link(OVS, other("openvswitch"), None),
            ],
            of_pods: [PORT, ROUTED].into(),
            uplinks: [UPLINK].into(),
        }
    }

    #[test]
    fn the_pods_own_link_and_its_bridge_lead_to_it() {
        let own = |index: u32| NodeRoute::Own(format!("link{index}"));
        assert_eq!(links().judge(Some(PORT), Some(BRIDGE)), own(BRIDGE));
        assert_eq!(links().judge(Some(PORT), Some(PORT)), own(PORT));
        assert_eq!(links().judge(Some(ROUTED), Some(ROUTED)), own(ROUTED));
    }

    #[test]
    fn nothing_else_does_for_a_pod_of_a_bridge() {
        for towards in [1, UPLINK, ROUTED, SWITCH, STORAGE, OVERLAY, OVS, 99] {
            let route = links().judge(Some(PORT), Some(towards));
            assert_eq!(route, NodeRoute::Elsewhere, "{towards}");
        }
        assert_eq!(links().judge(Some(PORT), None), NodeRoute::Elsewhere);
    }

    #[test]
    fn a_switch_leads_to_pods_and_no_link_of_another_pod_or_of_the_hardware_does() {
        for towards in [SWITCH, OVS] {
            assert_eq!(
                links().judge(Some(ROUTED), Some(towards)),
                NodeRoute::Switch
            );
            assert_eq!(links().judge(None, Some(towards)), NodeRoute::Switch);
        }
        for towards in [1, UPLINK, BRIDGE, PORT, STORAGE, OVERLAY] {
            let route = links().judge(Some(ROUTED), Some(towards));
            assert_eq!(route, NodeRoute::Elsewhere, "{towards}");
        }
        let mut of_uplink = links();
        of_uplink.uplinks.insert(OVS);
        assert_eq!(of_uplink.judge(None, Some(OVS)), NodeRoute::Elsewhere);
    }

    #[test]
    fn a_number_of_another_namespace_is_no_link_of_the_node() {
        // Such as that of the link below a macvlan.
        let route = links().judge(Some(UPLINK), Some(UPLINK));
        assert_eq!(route, NodeRoute::Elsewhere);
        let route = links().judge(Some(STORAGE), Some(STORAGE));
        assert_eq!(route, NodeRoute::Elsewhere);
    }
}
