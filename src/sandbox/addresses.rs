//! The addresses of a guest that the daemon connects to.
//!
//! Invariant: those of `eth0` that the CNI result names, and no others: addresses of further NICs may
//! be the choice of the pod's author.
//! Failure: none; a sandbox without a network has no address.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use tapmanager::wire::Network;

use super::Sandbox;

/// The link that carries the pod's own network.
const LINK: &str = "eth0";

impl Sandbox {
    /// Addresses of the guest's `eth0` that the CNI result names, in the order of the pod's status.
    /// They are not checked: see `images::foreign_only`.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let network = self.network.as_ref();
        network.map(named_addresses).unwrap_or_default()
    }
}

fn named_addresses(network: &Network) -> Vec<IpAddr> {
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
        assert_eq!(named_addresses(&network), expected);
        network.detached = true;
        assert!(named_addresses(&network).is_empty());
        network.detached = false;
        network.cni_result = Value::Null;
        assert!(named_addresses(&network).is_empty());
    }
}
