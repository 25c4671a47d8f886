//! The wire between the nodes of a cluster: each further node's bridge hangs on the first one's.
//!
//! Invariant: every node reaches every other node, and every pod by a route through its node.
//! Failure: the `ip` command that was refused is in the error.

use anyhow::Result;

use super::{node_address, pod_subnet};
use crate::run;
use crate::stack::Layout;
use crate::stack::netns::NODE_LINK;

/// Both ends of the wire, each named after the node at the other end.
pub(crate) const PEER_PREFIX: &str = "peer";

/// Connects a node to the first one, and its pods to those of all nodes that are there.
pub(super) fn connect(control: &Layout, layout: &Layout, number: u8) -> Result<()> {
    let first = control.netns_name();
    let own = layout.netns_name();
    let here = format!("{PEER_PREFIX}1");
    let there = format!("{PEER_PREFIX}{number}");
    let pair = ["type", "veth", "peer", "name", &here, "netns", &own];
    ip(&first, &[&["link", "add", &there], &pair[..]].concat())?;
    ip(&first, &["link", "set", &there, "master", NODE_LINK, "up"])?;
    ip(&own, &["link", "set", &here, "master", NODE_LINK, "up"])?;
    let others = super::worker_namespaces(control);
    for (other, name) in others.into_iter().chain([(1, first)]) {
        if other != number {
            route(&own, other)?;
            route(&name, number)?;
        }
    }
    Ok(())
}

fn route(netns: &str, to: u8) -> Result<()> {
    ip(
        netns,
        &[
            "route",
            "replace",
            &pod_subnet(to),
            "via",
            &node_address(to),
        ],
    )
}

fn ip(netns: &str, arguments: &[&str]) -> Result<()> {
    run::output(run::command("ip").args(["-n", netns]).args(arguments)).map(drop)
}
