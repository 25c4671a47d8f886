//! The agent's settings.
//!
//! Invariant: a [`Config`] that was checked names a node and can be used.
//! Failure: [`Error`] names the key and states what is wrong with it.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service::boot_id;
use service::settings::{Problem, Settings, Timespan};
use service::telemetry::Log;

use crate::orphans::Times;

/// Settings of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Name of the node on which this agent runs. It has no default.
    pub node: String,
    /// Path to the kubeconfig file. If unset, the in-cluster configuration is used.
    pub kubeconfig: Option<PathBuf>,
    /// Socket of the daemon's node API.
    pub node_endpoint: String,
    /// Status socket of the proxy; empty for no proxy.
    pub proxy_endpoint: String,
    /// Namespace of the node's lease.
    pub namespace: String,
    /// File that contains the boot ID of the kernel.
    pub boot_id_file: PathBuf,
    /// Address of `/healthz` and `/readyz`; not served if unset.
    pub health_listen: Option<SocketAddr>,
    /// Address of `/metrics`; not served if unset.
    pub metrics_listen: Option<SocketAddr>,
    /// Log output on standard error.
    pub log: Log,
    /// Time limits and intervals.
    pub limits: Limits,
}

/// Time limits and intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Time for which the object of a task is kept after the task has ended.
    pub completed_tasks: Timespan,
    /// Minimum time between two writes of the progress of a task.
    pub progress: Timespan,
    /// Minimum time between two writes of the facts of a guest, except for its power state, a
    /// pause and its first address.
    pub guest_facts: Timespan,
    /// Interval at which the manifest of a machine is compared with its object; at least 1s.
    pub manifest_interval: Timespan,
    /// Interval of the search for disks whose machine no longer exists; at least 1s.
    pub orphan_interval: Timespan,
    /// Minimum time between the first search that finds such a disk and the search that reports it.
    pub orphan_confirm: Timespan,
    /// Time between the first search that finds such a disk and its removal; `0s`: the disk is not
    /// removed. Otherwise at least `orphan_confirm`. A disk without a manifest of this cluster is never
    /// removed.
    pub orphan_remove_after: Timespan,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting has no usable value.
    #[error("{setting} {problem}")]
    Value {
        /// The key.
        setting: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An endpoint is none.
    #[error("{setting}")]
    Endpoint {
        /// The key.
        setting: &'static str,
        /// The reason.
        #[source]
        source: nodeapi::client::Error,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: String::new(),
            kubeconfig: None,
            node_endpoint: nodeapi::client::DEFAULT_ENDPOINT.to_owned(),
            proxy_endpoint: "unix:///run/vmlet/proxy/status.sock".to_owned(),
            namespace: crds::names::NAMESPACE.to_owned(),
            boot_id_file: boot_id::KERNEL.into(),
            health_listen: None,
            metrics_listen: None,
            log: Log::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            completed_tasks: Timespan::from_secs(600),
            progress: Timespan::from_secs(5),
            guest_facts: Timespan::from_secs(5),
            manifest_interval: Timespan::from_secs(300),
            orphan_interval: Timespan::from_secs(600),
            orphan_confirm: Timespan::from_secs(3600),
            orphan_remove_after: Timespan::from_secs(0),
        }
    }
}

impl Limits {
    pub(crate) fn orphans(&self) -> Times {
        Times {
            sweep: self.orphan_interval.get(),
            confirm: self.orphan_confirm.get(),
            remove_after: Some(self.orphan_remove_after.get()).filter(|after| !after.is_zero()),
        }
    }
}

impl Settings for Config {
    const PROGRAM: &'static str = "vmlet-agent";
    const PREFIX: &'static str = "VMLET_AGENT";
    const FILE: &'static str = "/etc/vmlet/agent.toml";

    fn check(&self) -> Result<(), Problem> {
        Ok(check(self)?)
    }
}

fn check(config: &Config) -> Result<(), Error> {
    let wrong = |setting, problem| Err(Error::Value { setting, problem });
    let is_name = |text: &str| {
        let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        text.starts_with(ends)
            && text.ends_with(ends)
            && text.chars().all(|c| ends(c) || matches!(c, '-' | '.'))
    };
    if !is_name(&config.node) {
        return wrong(
            "node",
            "must be the name of this node: set it in the file, by --node or in VMLET_AGENT_NODE",
        );
    }
    if config.node.len() > crds::node_facts::NODE_NAME_LIMIT {
        return wrong("node", "is too long for the name of a lease");
    }
    if !is_name(&config.namespace) {
        return wrong("namespace", "must be the name of a namespace");
    }
    let limits = &config.limits;
    if limits.manifest_interval < Timespan::from_secs(1) {
        return wrong("limits.manifest_interval", "must be at least 1s");
    }
    if limits.orphan_interval < Timespan::from_secs(1) {
        return wrong("limits.orphan_interval", "must be at least 1s");
    }
    if !limits.orphan_remove_after.is_zero() && limits.orphan_remove_after < limits.orphan_confirm {
        return wrong(
            "limits.orphan_remove_after",
            "must be 0s, or at least limits.orphan_confirm",
        );
    }
    for (setting, endpoint) in [
        ("node_endpoint", &config.node_endpoint),
        ("proxy_endpoint", &config.proxy_endpoint),
    ] {
        if setting == "proxy_endpoint" && endpoint.is_empty() {
            continue;
        }
        nodeapi::client::socket_path(endpoint)
            .map_err(|source| Error::Endpoint { setting, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
