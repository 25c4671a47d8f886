//! The wire between the nodes of a cluster: each further node's bridge hangs on the first one's.
//!
//! Invariant: every node reaches every other node, and every pod by a route through its node.
//! Failure: the `ip` command that was refused is in the error.

use anyhow::Result;

use super::{Node, node_address, pod_subnet};
use crate::run;
use crate::stack::Layout;
use crate::stack::netns::NODE_LINK;

/// Both ends of the wire, each named after the node at the other end.
pub(crate) const PEER_PREFIX: &str = "peer";

/// Connects a node to the first one and to those that joined before it.
pub(super) fn connect(control: &Layout, layout: &Layout, node: &Node) -> Result<()> {
    let (first, own) = (control.netns_name(), layout.netns_name());
    let (here, there) = (
        format!("{PEER_PREFIX}1"),
        format!("{PEER_PREFIX}{}", node.number),
    );
    ip(
        &first,
        &[
            "link", "add", &there, "type", "veth", "peer", "name", &here, "netns", &own,
        ],
    )?;
    ip(&first, &["link", "set", &there, "master", NODE_LINK, "up"])?;
    ip(&own, &["link", "set", &here, "master", NODE_LINK, "up"])?;
    for number in 1..node.number {
        let other = match number {
            1 => control.clone(),
            _ => Layout::existing(&super::worker_dir(control.dir(), number))?,
        };
        route(&own, number)?;
        route(&other.netns_name(), node.number)?;
    }
    Ok(())
}

fn route(netns: &str, to: u8) -> Result<()> {
    ip(
        netns,
        &["route", "add", &pod_subnet(to), "via", &node_address(to)],
    )
}

fn ip(netns: &str, arguments: &[&str]) -> Result<()> {
    run::output(run::command("ip").args(["-n", netns]).args(arguments)).map(drop)
}
