//! Messages between the daemon and `vmlet-tapmanager`, and between `vmwrapper` and the hand-off
//! socket.
//!
//! Invariant: one JSON document per `SOCK_SEQPACKET` message, at most [`MAX_MESSAGE`] bytes; the
//! first request of a connection is [`Request::Hello`]; every request gets exactly one [`Reply`].
//! Failure: a message that does not parse is answered with [`ErrorCode::Invalid`] and the
//! connection is closed; nothing else happens. The page `docs/protocols.md` describes the exchange.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod network;

pub use network::{Address, Dns, Network, Nic, NicCounters, Route, SandboxCounters};

/// Version of both protocols; a peer with another one is refused with [`ErrorCode::Version`].
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest message in bytes, either way.
pub const MAX_MESSAGE: usize = 128 * 1024;

/// What the daemon asks on the control socket.
///
/// Requests without fields are written with braces: serde would ignore the fields of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// First message of every connection. Answer: [`Answer::Hello`].
    Hello {
        /// The caller's [`PROTOCOL_VERSION`].
        version: u32,
    },
    /// Makes the network of a sandbox, or returns the one that exists. Answer: [`Answer::Network`].
    Add(Box<AddRequest>),
    /// The network of a sandbox. Answer: [`Answer::Network`], or [`ErrorCode::NotFound`].
    Get {
        /// Sandbox id.
        id: String,
    },
    /// Checks that the network of a sandbox is as it was made: namespace, links, taps, addresses,
    /// DHCP. Answer: [`Answer::Done`].
    Check {
        /// Sandbox id.
        id: String,
    },
    /// Takes the network of a sandbox down; success when there is none. Answer: [`Answer::Done`].
    Del {
        /// Sandbox id.
        id: String,
    },
    /// Ids of all sandboxes with a network or a part of one. Answer: [`Answer::Ids`].
    List {},
    /// Takes down every network but those named, then runs CNI GC where the settings allow it.
    /// Answer: [`Answer::Ids`]: what went.
    Gc {
        /// Sandbox ids that stay.
        keep: Vec<String>,
    },
    /// Whether new networks can be made. Answer: [`Answer::Status`].
    Status {},
    /// How the node reaches the guest of a sandbox. Answer: [`Answer::Routes`].
    Routes {
        /// Sandbox id.
        id: String,
    },
    /// Allows one start of a virtual machine. Answer: [`Answer::Token`].
    PrepareStart(StartRequest),
    /// Traffic of the guests, sandbox by sandbox in the order of their ids. Answer:
    /// [`Answer::Counters`].
    Counters {
        /// Only sandboxes whose ids come after this one; empty for the first.
        after: String,
    },
}

/// What [`Request::Add`] needs to know about a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AddRequest {
    /// Sandbox id; also the CNI container id.
    pub id: String,
    /// Pod name, for `K8S_POD_NAME`.
    pub pod_name: String,
    /// Pod namespace, for `K8S_POD_NAMESPACE`.
    pub pod_namespace: String,
    /// Pod UID, for `K8S_POD_UID`.
    pub pod_uid: String,
    /// Host name the guest is offered by DHCP; empty for none.
    pub hostname: String,
    /// DNS of the CRI request; replaces what plugins say when it has servers.
    pub dns: Dns,
    /// Passed to plugins with the capability `portMappings`.
    pub port_mappings: Vec<PortMapping>,
    /// Passed to plugins with the capability `bandwidth`.
    pub bandwidth: Option<Bandwidth>,
    /// The guest may send with any MAC and IP address, and configure others; for pods that route.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_spoofing: bool,
    /// The guest has no NIC: its machine is handed none. The pod's network is made all the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// Hardware address that the guest's first NIC is to have: lower case, colons; empty for that
    /// of the plugin.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The guest's NICs, when it has them already because it continues from saved memory, `eth0`
    /// first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub known_nics: Vec<KnownNic>,
}

/// A NIC as a guest knows it. Plugins get a request for the same addresses; the hardware address is
/// kept in any case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownNic {
    /// Hardware address: lower case, colons.
    pub mac: String,
    /// Addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
}

/// A port of the node that leads to a port of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortMapping {
    /// Port of the node, 1–65535.
    pub host_port: u16,
    /// Port of the guest, 1–65535.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Address of the node to listen on; empty for all.
    #[serde(rename = "hostIP", default, skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

/// Traffic limits as the CNI `bandwidth` capability spells them: bits per second and bits; 0 is
/// none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bandwidth {
    /// Towards the pod, bit/s.
    pub ingress_rate: u64,
    /// Towards the pod, bits.
    pub ingress_burst: u64,
    /// From the pod, bit/s.
    pub egress_rate: u64,
    /// From the pod, bits.
    pub egress_burst: u64,
}

/// How long a start is allowed: longer than it waits for the starts, or the restores of memory, that
/// libvirt has begun before it. The next start of the sandbox and its end void the token earlier.
pub const TOKEN_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// Allows the machine of one sandbox to fetch its descriptors once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// Sandbox id.
    pub id: String,
    /// The pod's cgroup as kubelet names it (`/kubepods/…`); empty leaves QEMU where libvirt starts
    /// it.
    pub cgroup_parent: String,
    /// Bytes of memory that this cgroup must allow at least; 0 leaves its limit as kubelet made it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_bytes: u64,
    /// User that the machine runs as, and the only one that may use the token; QEMU's when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One message back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The request was carried out.
    Ok(Answer),
    /// The request was not carried out.
    Error(WireError),
}

/// The result of a request that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Hello`].
    Hello {
        /// The server's [`PROTOCOL_VERSION`].
        version: u32,
        /// The server's package version.
        server: String,
    },
    /// To [`Request::Add`] and [`Request::Get`].
    Network(Box<Network>),
    /// To [`Request::List`] and [`Request::Gc`].
    Ids {
        /// Sandbox ids, sorted.
        ids: Vec<String>,
    },
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::PrepareStart`].
    Token(Permit),
    /// To [`Request::Routes`].
    Routes {
        /// The addresses of its own link that the node's routes lead to.
        routes: Vec<PodRoute>,
    },
    /// To [`Request::Counters`].
    Counters {
        /// Those that could be read at once; others are left out.
        sandboxes: Vec<SandboxCounters>,
        /// The `after` of the next request, if there are more.
        more: Option<String>,
    },
    /// To requests without a result.
    Done,
}

/// An address of a guest that the node reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRoute {
    /// The address.
    pub address: IpAddr,
    /// The node's link that leads to the pod; `None` where the switch of a plugin leads to all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// What a machine needs to fetch its descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// 64 hex digits, good for one hand-off.
    pub token: String,
    /// Name of the socket of this start, see [`start_socket`]. An earlier tapmanager makes none: the
    /// machine uses the socket for all starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
}

/// The path of a start's socket, in a directory beside the socket for all starts.
#[must_use]
pub fn start_socket(shared: &Path, name: &str) -> PathBuf {
    shared.with_extension("d").join(name)
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct WireError {
    /// What kind of failure.
    pub code: ErrorCode,
    /// A sentence for people, with the plugin's own message where there is one.
    pub message: String,
}

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The message is malformed or requests something impossible.
    Invalid,
    /// The two sides speak different protocol versions.
    Version,
    /// No such sandbox or token.
    NotFound,
    /// No usable CNI configuration.
    NotReady,
    /// A CNI plugin failed.
    Plugin,
    /// A CNI plugin did not end, or a cgroup did not answer, within its deadline.
    Timeout,
    /// The kernel or the disk refused.
    System,
}

/// Whether new networks can be made, and by what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether [`Request::Add`] can succeed.
    pub ready: bool,
    /// A sentence when not ready; empty otherwise.
    pub message: String,
    /// The configuration file in use.
    pub config_file: Option<PathBuf>,
    /// Name of the CNI network.
    pub network: String,
    /// Plugin types of the chain, in order.
    pub plugins: Vec<String>,
    /// Further facts for diagnostics.
    pub details: BTreeMap<String, String>,
}

/// What `vmwrapper` sends on the hand-off socket: one message per connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffRequest {
    /// The caller's [`PROTOCOL_VERSION`].
    pub version: u32,
    /// The token of [`Answer::Token`].
    pub token: String,
}

/// What `vmwrapper` gets. With `Ok` come the tap descriptors as SCM_RIGHTS, one per NIC, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffReply {
    /// The NICs to give to QEMU.
    Ok {
        /// In the order of the descriptors.
        nics: Vec<HandoffNic>,
    },
    /// Nothing is handed over.
    Error(WireError),
}

/// A NIC as QEMU needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoffNic {
    /// MAC address of the guest's NIC.
    pub mac: String,
    /// Largest packet in bytes.
    pub mtu: u32,
}

#[cfg(test)]
mod tests;
