//! The servers that configure a guest's addresses.
//!
//! Invariant: what is served is the recorded network; dropping the value ends both servers.
//! Failure: one server that cannot start is an error; the other one ends with it.

use netns::{Namespace, dhcp, ipv6};
use tapmanager::wire::Network;

use crate::failure::Failure;
use crate::network;

/// The servers of one pod.
#[derive(Debug)]
pub(super) struct Servers {
    _dhcp: dhcp::Server,
    _ipv6: ipv6::Server,
}

impl Servers {
    /// Serves `network` in its namespace `ns`; gateways of pods are on `node`.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub(super) async fn start(
        ns: &Namespace,
        network: &Network,
        hostname: &str,
        node: &ipv6::Node,
    ) -> Result<Self, Failure> {
        let leases = network::leases(network, hostname);
        let dhcp = dhcp::Server::start(ns, leases)
            .await
            .map_err(Failure::Dhcp)?;
        let ports = network::ipv6_ports(network, hostname);
        let ipv6 = ipv6::Server::start(ns, node, ports)
            .await
            .map_err(Failure::Ipv6)?;
        Ok(Self {
            _dhcp: dhcp,
            _ipv6: ipv6,
        })
    }
}
