//! Node facts: the report of a node's agent, in the annotation of a Lease that it renews.
//!
//! Invariant: facts are as old as the lease's `renewTime` at most; after [`LEASE_SECONDS`] without
//! renewal nothing in them counts.
//! Failure: [`Error`] for text that is no such JSON or too long.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::text::printable;

/// How long a lease counts after it was renewed.
pub const LEASE_SECONDS: i32 = 40;
/// How often it is renewed.
pub const RENEW_SECONDS: u32 = 10;
/// Longest JSON, in bytes.
pub const LIMIT: usize = 16_384;
/// Longest name of a node whose lease's name is still a name.
pub const NODE_NAME_LIMIT: usize = 242;

const PREFIX: &str = "vmlet-node-";
const TEXT: usize = 256;
const LIST: usize = 64;
/// Most features of agent and daemon together.
const FEATURES: usize = 16;

/// What runs on a node.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFacts {
    /// Version of the agent.
    pub agent_version: String,
    /// The kernel's boot id.
    pub boot_id: String,
    /// What agent and daemon can do together that earlier versions cannot, such as
    /// [`names::NODE_PROBES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// The daemon `vmlet`.
    pub daemon: DaemonFacts,
    /// The CRI proxy; absent if the agent is configured without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyFacts>,
    /// Virtual machines that the daemon knows, running or not.
    pub machines: u32,
    /// Disks of virtual machines on the node, also of those that are off, and those whose record
    /// cannot be read; absent until the agent has counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disks: Option<u32>,
    /// Those of [`Self::disks`] whose record cannot be read; absent until the agent has counted them, and
    /// in the report of an agent that does not count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable_disks: Option<u32>,
}

/// The daemon. While it does not answer, the other fields keep their last values.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonFacts {
    /// Whether it answers now.
    pub reachable: bool,
    /// Why it does not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Its version.
    pub version: String,
    /// Constant for the life of its state directory.
    pub installation_id: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Version of libvirt.
    pub libvirt_version: String,
    /// Version of QEMU.
    pub qemu_version: String,
    /// Bytes of the file system that holds the disks.
    pub disk_capacity_bytes: u64,
    /// Bytes that are free there.
    pub disk_available_bytes: u64,
    /// Running machines that would end with the daemon's pod; they should outlive it.
    pub bound_machines: u32,
    /// Kinds of task that it runs, as [`crate::TaskKind`] spells them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub task_kinds: Vec<String>,
    /// Machine types that it offers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_types: Vec<String>,
    /// What it can do that earlier versions cannot, such as [`names::DISK_WITHOUT_IMAGE`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
}

/// The CRI proxy. While it does not answer, the version keeps its last value.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyFacts {
    /// Whether it answers now, and with the conditions of a proxy. False too when its primary is
    /// away.
    pub reachable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Its version; empty when what answers is no proxy of ours.
    pub version: String,
    /// Whether it reaches the daemon: its condition `VmletRuntimeReady`.
    pub runtime_ready: bool,
}

/// Not the annotation of an agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More than [`LIMIT`] bytes.
    #[error("node facts have {0} bytes, at most {LIMIT} are read")]
    TooLong(usize),
    /// Not the JSON that it should be.
    #[error("node facts are not the JSON of an agent")]
    Json(#[source] serde_json::Error),
}

impl NodeFacts {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// [`Error`] when the text is too long or no such JSON.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.len() > LIMIT {
            return Err(Error::TooLong(text.len()));
        }
        serde_json::from_str(text)
            .map(Self::bounded)
            .map_err(Error::Json)
    }

    /// The annotation's text; bound the facts first.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, numbers and booleans: nothing that JSON could refuse.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Cuts what is too long or too much.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let daemon = &mut self.daemon;
        daemon.task_kinds.truncate(LIST);
        daemon.machine_types.truncate(LIST);
        daemon.features.truncate(LIST);
        self.features.truncate(FEATURES);
        let lists = daemon
            .task_kinds
            .iter_mut()
            .chain(&mut daemon.machine_types)
            .chain(&mut daemon.features)
            .chain(&mut self.features);
        lists.for_each(|item| {
            item.retain(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
            item.truncate(48);
        });
        let mut fields = vec![
            &mut self.agent_version,
            &mut self.boot_id,
            &mut daemon.message,
            &mut daemon.version,
            &mut daemon.installation_id,
            &mut daemon.accelerator,
            &mut daemon.libvirt_version,
            &mut daemon.qemu_version,
        ];
        if let Some(proxy) = &mut self.proxy {
            fields.extend([&mut proxy.message, &mut proxy.version]);
        }
        for field in fields {
            *field = printable(field, TEXT);
        }
        self
    }

    /// The facts on a lease; none when it has no readable ones.
    #[must_use]
    pub fn of_lease(lease: &Lease) -> Option<Self> {
        let annotations = lease.metadata.annotations.as_ref()?;
        Self::from_json(annotations.get(names::NODE_FACTS)?).ok()
    }
}

/// Name of a node's lease, in the namespace of Vmlet's programs.
#[must_use]
pub fn lease_name(node: &str) -> String {
    format!("{PREFIX}{node}")
}

/// The node that a lease of that name is of.
#[must_use]
pub fn node_of_lease(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX).filter(|node| !node.is_empty())
}

/// Whether the lease still counts. One from the future does not: its clock cannot be trusted.
#[must_use]
pub fn is_fresh(lease: &Lease, now: &Time) -> bool {
    let renewed = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref());
    renewed.is_some_and(|renewed| {
        let age = now.0.duration_since(renewed.0).as_secs();
        age.abs() <= i64::from(LEASE_SECONDS)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use rstest::rstest;

    use super::*;

    #[test]
    fn facts_survive_being_written_and_read_and_the_largest_fit() {
        let long = "\\".repeat(5000);
        let facts = NodeFacts {
            agent_version: long.clone(),
            boot_id: long.clone(),
            features: vec!["f".repeat(500); 1000],
            daemon: DaemonFacts {
                message: long.clone(),
                version: long.clone(),
                installation_id: long.clone(),
                accelerator: long.clone(),
                libvirt_version: long.clone(),
                qemu_version: long.clone(),
                task_kinds: vec!["k".repeat(500); 1000],
                machine_types: vec!["m".repeat(500); 1000],
                features: vec!["f".repeat(500); 1000],
                ..DaemonFacts::default()
            },
            proxy: Some(ProxyFacts {
                message: long.clone(),
                version: long,
                ..ProxyFacts::default()
            }),
            machines: 3,
            disks: Some(u32::MAX),
            unreadable_disks: Some(u32::MAX),
        };
        let facts = facts.bounded();
        let text = facts.to_json();
        assert!(text.len() <= LIMIT, "{}", text.len());
        assert_eq!(NodeFacts::from_json(&text).unwrap(), facts);
        assert!(matches!(
            NodeFacts::from_json(&"x".repeat(LIMIT + 1)),
            Err(Error::TooLong(_))
        ));
    }

    #[test]
    fn facts_of_another_version_are_read_with_more_or_fewer_fields() {
        let older = NodeFacts::from_json(r#"{"machines":3,"disks":5}"#).unwrap();
        assert_eq!((older.disks, older.unreadable_disks), (Some(5), None));
        assert!(!older.to_json().contains("unreadableDisks"));
        let newer = r#"{"disks":5,"unreadableDisks":1,"ofALaterVersion":{"x":[1]}}"#;
        let newer = NodeFacts::from_json(newer).unwrap();
        assert_eq!((newer.disks, newer.unreadable_disks), (Some(5), Some(1)));
    }

    #[rstest]
    #[case::just_renewed("2026-01-02T03:04:05Z", true)]
    #[case::nearly_over("2026-01-02T03:03:25Z", true)]
    #[case::over("2026-01-02T03:03:24Z", false)]
    #[case::from_a_wrong_clock("2026-01-02T03:06:00Z", false)]
    fn a_lease_counts_for_forty_seconds(#[case] renewed: &str, #[case] fresh: bool) {
        let now = Time("2026-01-02T03:04:05Z".parse().unwrap());
        let lease = Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(renewed.parse().unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert_eq!(is_fresh(&lease, &now), fresh);
        assert!(!is_fresh(&Lease::default(), &now));
    }

    #[test]
    fn the_lease_of_a_node_is_found_by_name() {
        assert_eq!(lease_name("node1"), "vmlet-node-node1");
        assert_eq!(node_of_lease("vmlet-node-node1"), Some("node1"));
        assert_eq!(node_of_lease("vmlet-node-"), None);
        assert_eq!(node_of_lease("other"), None);
        assert!(lease_name(&"n".repeat(NODE_NAME_LIMIT)).len() <= 253);
    }
}
