//! What the messages say about a pod's network.
//!
//! Invariant: a field that older programs do not send has a default.
//! Failure: none; a text that does not parse is the reader's error.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The network of one sandbox, as the guest will see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Sandbox id.
    pub id: String,
    /// Path of the pod's network namespace.
    pub netns: PathBuf,
    /// One entry per link of the pod, and so per NIC of a guest that is not detached; never empty.
    /// The first belongs to `eth0`.
    pub nics: Vec<Nic>,
    /// The name servers for the guest.
    pub dns: Dns,
    /// Name of the CNI network.
    pub cni_network: String,
    /// The final CNI result as the last plugin printed it.
    pub cni_result: Value,
    /// The guest has none of these NICs: there is no host behind the pod's addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// What plugins left in the namespace and no guest gets, in sentences for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<String>,
}

impl Network {
    /// Every address of the pod, the primary one first.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.nics
            .iter()
            .flat_map(|nic| nic.addresses.iter().map(|a| a.net.addr()))
    }

    /// The NICs that the guest has.
    #[must_use]
    pub fn guest_nics(&self) -> &[Nic] {
        if self.detached { &[] } else { &self.nics }
    }
}

/// One NIC of the guest with the link that carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Name of the plugin's link in the pod's namespace, such as `eth0`.
    pub link: String,
    /// The MAC address of the guest's NIC: the one that was requested, or the one that the plugin
    /// gave the link. Lower case, colons.
    pub mac: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Bridge between link and tap.
    pub bridge: String,
    /// Tap device of the guest.
    pub tap: String,
    /// Addresses with prefix and gateway, IPv4 and IPv6.
    pub addresses: Vec<Address>,
    /// Routes the guest gets.
    pub routes: Vec<Route>,
}

/// The link that carries a pod's own network.
const LINK: &str = "eth0";

impl Network {
    /// Addresses of the guest's `eth0` that the result of the plugins names, too: those of further links
    /// may be the choice of the pod's author.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let ips = self.cni_result.get("ips").and_then(Value::as_array);
        let ips = ips.into_iter().flatten();
        let named: Vec<IpAddr> = ips
            .filter_map(|ip| ip.get("address")?.as_str()?.parse::<IpNet>().ok())
            .map(|net| net.addr())
            .collect();
        let nics = self.guest_nics().iter().filter(|nic| nic.link == LINK);
        nics.flat_map(|nic| &nic.addresses)
            .map(|address| address.net.addr())
            .filter(|address| named.contains(address))
            .collect()
    }
}

/// An address of a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Address and prefix length.
    pub net: IpNet,
    /// Gateway the plugin named for it.
    pub gateway: Option<IpAddr>,
}

/// A route of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination; `0.0.0.0/0` is the default route.
    pub dst: IpNet,
    /// Next hop; none for a route on the link.
    pub gw: Option<IpAddr>,
}

/// Traffic of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxCounters {
    /// Sandbox id.
    pub id: String,
    /// In the order of the guest's NICs.
    pub nics: Vec<NicCounters>,
}

/// Traffic of one NIC since the sandbox was made, as the guest sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicCounters {
    /// Name of the plugin's link in the pod's namespace, such as `eth0`.
    pub link: String,
    /// Bytes that the guest has received.
    pub rx_bytes: u64,
    /// Packets for the guest that were lost because of errors.
    pub rx_errors: u64,
    /// Bytes that the guest has sent.
    pub tx_bytes: u64,
    /// Packets of the guest that were lost because of errors.
    pub tx_errors: u64,
    /// Packets that the guest has received; absent from older programs, as the rest is.
    #[serde(default)]
    pub rx_packets: Option<u64>,
    /// Packets for the guest that were dropped.
    #[serde(default)]
    pub rx_dropped: Option<u64>,
    /// Packets that the guest has sent.
    #[serde(default)]
    pub tx_packets: Option<u64>,
    /// Packets of the guest that were dropped.
    #[serde(default)]
    pub tx_dropped: Option<u64>,
}

/// Name service settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// Server addresses.
    pub servers: Vec<String>,
    /// Search list.
    pub searches: Vec<String>,
    /// Resolver options such as `ndots:5`.
    pub options: Vec<String>,
}
