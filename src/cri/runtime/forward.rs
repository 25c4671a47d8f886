//! Requests for connections to ports of a guest.
//!
//! Invariant: the daemon connects in the node's network, so only to addresses that cannot be
//! another's: those of `eth0` that the CNI result names, and none that the node has itself or that
//! means a service of the node. Addresses of further NICs may be the choice of the pod's author.
//! Failure: statuses that name the sandbox.

use std::net::IpAddr;

use cri_proto::v1;
use ipnet::IpNet;
use serde_json::Value;
use tapmanager::wire::Network;
use tonic::Status;

use super::Runtime;
use crate::images;
use crate::sandbox::state::Phase;
use crate::streaming::{PortForwardTarget, Target};

/// The link that carries the pod's own network.
const LINK: &str = "eth0";

impl Runtime {
    pub(super) async fn port_forward(
        &self,
        request: v1::PortForwardRequest,
    ) -> Result<v1::PortForwardResponse, Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let refused = |why: &str| {
            let id = &sandbox.id;
            Status::failed_precondition(format!("sandbox {id}: {why}"))
        };
        if sandbox.phase != Phase::Ready {
            return Err(refused("it is not ready and has no network"));
        }
        let network = sandbox.network.as_ref();
        let own = network.map(own_addresses).unwrap_or_default();
        if own.is_empty() {
            return Err(refused(
                "its guest has no address on eth0 that the result of the CNI plugins names",
            ));
        }
        let checked = tokio::task::spawn_blocking(move || images::foreign_only(own));
        let addresses = checked.await.unwrap_or_default();
        if addresses.is_empty() {
            return Err(refused(
                "its addresses belong to the node or to services of it: connections are not \
                 forwarded there",
            ));
        }
        let ports = ports(&request.port)?;
        let url = self.url(Target::PortForward(PortForwardTarget { addresses, ports }))?;
        Ok(v1::PortForwardResponse { url })
    }
}

/// Addresses of the guest's `eth0` that the CNI result names, in the order of the pod's status.
fn own_addresses(network: &Network) -> Vec<IpAddr> {
    let ips = network.cni_result.get("ips").and_then(Value::as_array);
    let ips = ips.into_iter().flatten();
    let named: Vec<IpAddr> = ips
        .filter_map(|ip| ip.get("address")?.as_str()?.parse::<IpNet>().ok())
        .map(|net| net.addr())
        .collect();
    let nics = network.guest_nics().iter().filter(|nic| nic.link == LINK);
    nics.flat_map(|nic| &nic.addresses)
        .map(|address| address.net.addr())
        .filter(|address| named.contains(address))
        .collect()
}

/// The ports of a request; clients over SPDY name theirs later.
fn ports(numbers: &[i32]) -> Result<Vec<u16>, Status> {
    let port = |number: &i32| u16::try_from(*number).ok().filter(|port| *port > 0);
    let ports = numbers.iter().map(|number| {
        port(number).ok_or_else(|| Status::invalid_argument(format!("port: {number} is no port")))
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tapmanager::wire::{Address, Dns, Nic};

    use super::*;

    fn nic(link: &str, addresses: &[&str]) -> Nic {
        let address = |text: &&str| Address {
            net: text.parse().unwrap(),
            gateway: None,
        };
        Nic {
            link: link.to_owned(),
            mac: "0a:58:0a:01:00:05".to_owned(),
            mtu: 1500,
            bridge: "vmbr0".to_owned(),
            tap: "vmtap0".to_owned(),
            addresses: addresses.iter().map(address).collect(),
            routes: Vec::new(),
        }
    }

    #[test]
    fn connections_go_to_addresses_of_eth0_that_the_plugins_reported() {
        let mut network = Network {
            id: "one".to_owned(),
            netns: "/run/netns/one".into(),
            nics: vec![
                nic("eth0", &["10.1.0.5/24", "192.0.2.9/32", "fd00:1::5/64"]),
                nic("net1", &["169.254.169.254/32", "10.1.0.1/32"]),
            ],
            detached: false,
            omitted: Vec::new(),
            dns: Dns::default(),
            cni_network: "pods".to_owned(),
            cni_result: json!({"ips": [
                {"address": "fd00:1::5/64"}, {"address": "10.1.0.5/24"}, {"address": "10.1.0.1/32"},
            ]}),
        };
        let expected: [IpAddr; 2] = ["10.1.0.5".parse().unwrap(), "fd00:1::5".parse().unwrap()];
        assert_eq!(own_addresses(&network), expected);
        network.detached = true;
        assert!(own_addresses(&network).is_empty());
        network.detached = false;
        network.cni_result = Value::Null;
        assert!(own_addresses(&network).is_empty());
    }

    #[test]
    fn only_ports_are_ports() {
        assert_eq!(ports(&[1, 65_535]).unwrap(), [1, 65_535]);
        for odd in [0, -1, 65_536] {
            assert!(ports(&[odd]).is_err(), "{odd}");
        }
    }
}
