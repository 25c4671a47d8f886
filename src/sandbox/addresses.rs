//! The addresses of a guest that the daemon connects to.
//!
//! Invariant: those of `eth0` that the CNI result names, and no others: addresses of further NICs may
//! be the choice of the pod's author.
//! Failure: none; a sandbox without a network has no address.

use std::net::IpAddr;

use tapmanager::wire::Network;

use super::Sandbox;

impl Sandbox {
    /// Addresses of the guest's `eth0` that the CNI result names, in the order of the pod's status.
    /// They are not checked: see `images::foreign_only`.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let network = self.network.as_ref();
        network.map(Network::own_addresses).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
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
        assert_eq!(network.own_addresses(), expected);
        network.detached = true;
        assert!(network.own_addresses().is_empty());
        network.detached = false;
        network.cni_result = Value::Null;
        assert!(network.own_addresses().is_empty());
    }
}
