//! The record of a sandbox.
//!
//! Invariant: labels, annotations and metadata are kept byte for byte as the client gave them.
//! Failure: none here; validation happened where the request was decoded.

use std::collections::BTreeMap;

use podspec::{PodResources, SandboxId};
use serde::{Deserialize, Serialize};
use tapmanager::wire::Network;

use super::state::Phase;

/// A sandbox and where it is in its life.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Where it is in its life.
    pub phase: Phase,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// What the client requested.
    pub config: SandboxConfig,
    /// Its network, once made.
    pub network: Option<Network>,
}

/// The RuntimeClass handler of pods whose containers are processes of one machine.
pub const PROCESS_HANDLER: &str = "vmlet-process";

/// What a client requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// Names of the pod.
    pub metadata: PodMetadata,
    /// Host name of the guest; empty when not given.
    pub hostname: String,
    /// Directory of the container logs; empty when not given.
    pub log_directory: String,
    /// Name servers of the guest.
    pub dns: Option<DnsConfig>,
    /// Ports of the node that lead to the guest.
    pub port_mappings: Vec<PortMapping>,
    /// Labels, as given.
    pub labels: BTreeMap<String, String>,
    /// Annotations, as given.
    pub annotations: BTreeMap<String, String>,
    /// RuntimeClass handler, as given.
    pub runtime_handler: String,
    /// The pod's cgroup as kubelet names it; empty when not given.
    pub cgroup_parent: String,
    /// Namespace options, echoed in the status.
    pub namespaces: Namespaces,
    /// Resources of the whole pod, when given.
    pub resources: PodResources,
    /// Kernel parameters of the pod, by name.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Bytes of memory that the pod may use on top of its containers' limits: the RuntimeClass's
    /// overhead.
    #[serde(default)]
    pub memory_overhead: i64,
}

impl SandboxConfig {
    /// Whether the containers are processes of one machine.
    pub fn has_processes(&self) -> bool {
        self.runtime_handler == PROCESS_HANDLER
    }
}

/// Names of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodMetadata {
    /// Pod name.
    pub name: String,
    /// Pod UID.
    pub uid: String,
    /// Pod namespace.
    pub namespace: String,
    /// How often the pod was sandboxed before.
    pub attempt: u32,
}

impl PodMetadata {
    /// Text that is equal exactly for equal pod attempts.
    pub fn identity(&self) -> String {
        // A JSON list keeps names that contain the separator apart.
        serde_json::json!([self.namespace, self.name, self.uid, self.attempt]).to_string()
    }

    /// The pod attempt for people.
    pub fn shown(&self) -> String {
        let Self {
            namespace,
            name,
            attempt,
            ..
        } = self;
        format!("{namespace}/{name} (attempt {attempt})")
    }

    /// The pod that has this [`identity`](Self::identity).
    pub(super) fn of_identity(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Identity(String, String, String, u32);
        let Identity(namespace, name, uid, attempt) = serde_json::from_str(text).ok()?;
        Some(Self {
            name,
            uid,
            namespace,
            attempt,
        })
    }

    /// Whether both are of the same pod.
    pub fn is_same_pod(&self, other: &Self) -> bool {
        (&self.uid, &self.name, &self.namespace) == (&other.uid, &other.name, &other.namespace)
    }
}

/// Name service settings of a CRI request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsConfig {
    /// Server addresses.
    pub servers: Vec<String>,
    /// Search list.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// A port of the node that leads to a port of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port of the guest.
    pub container_port: u16,
    /// Port of the node; 0 when none is wanted.
    pub host_port: u16,
    /// Address of the node; empty for all.
    pub host_ip: String,
}

/// Transport protocol of a port mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// CRI namespace modes as numbers of the API's enumeration, echoed and not interpreted further.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network namespace mode.
    pub network: i32,
    /// PID namespace mode.
    pub pid: i32,
    /// IPC namespace mode.
    pub ipc: i32,
    /// Container whose namespaces are meant by mode TARGET.
    pub target_id: String,
}
