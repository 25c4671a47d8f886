//! The agent's settings: a TOML file, then environment and flags.
//!
//! Invariant: a [`Config`] that [`load`] returns names a node and can be used; unknown keys are refused.
//! Failure: [`Error`] says in a sentence what is wrong, with line and column where the file is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use service::boot_id;
use service::settings;
use service::settings::set;
use service::telemetry::{Filter, Log};

use crate::orphans::Times;

/// Read if it is there and no file is named.
pub const DEFAULT_FILE: &str = "/etc/vmlet/agent.toml";

/// Settings of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Name of the node on which this agent runs.
    pub node: String,
    /// Path to the kubeconfig file. If unset, the in-cluster configuration is used.
    pub kubeconfig: Option<PathBuf>,
    /// Socket of the daemon's node API.
    pub node_endpoint: String,
    /// CRI socket of the proxy; empty for no proxy.
    pub proxy_endpoint: String,
    /// Namespace of the node's lease.
    pub namespace: String,
    /// File that contains the boot ID of the kernel.
    pub boot_id_file: PathBuf,
    /// Address of `/healthz`, `/readyz` and `/metrics`; not served if unset.
    pub health_listen: Option<SocketAddr>,
    /// Log output on standard error.
    pub log: Log,
    /// Time limits and intervals.
    pub limits: Limits,
}

/// Time limits and intervals, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Time for which the object of a task is kept after the task has ended.
    pub completed_tasks_s: u32,
    /// Minimum time between two writes of the progress of a task.
    pub progress_s: u32,
    /// Minimum time between two writes of the facts of a guest, except for its power state and pause.
    pub guest_facts_s: u32,
    /// Interval of the search for disks whose machine no longer exists.
    pub orphan_look_s: u32,
    /// Minimum time between the first search that finds such a disk and the search that reports it.
    pub orphan_confirm_s: u32,
    /// Time between the first search that finds such a disk and its removal; 0: it is not removed.
    pub orphan_remove_after_s: u32,
}

/// Settings from flags and the environment, which override the file.
#[derive(Debug, Default, clap::Args)]
pub struct Overrides {
    /// Name of the node on which this agent runs.
    #[arg(long, value_name = "NAME", env = "VMLET_AGENT_NODE")]
    pub node: Option<String>,
    /// Path to the kubeconfig file [default: the in-cluster configuration].
    #[arg(long, value_name = "FILE", env = "VMLET_AGENT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Socket of the daemon's node API.
    #[arg(long, value_name = "ENDPOINT", env = "VMLET_AGENT_NODE_ENDPOINT")]
    pub node_endpoint: Option<String>,
    /// CRI socket of the proxy; empty for no proxy.
    #[arg(long, value_name = "ENDPOINT", env = "VMLET_AGENT_PROXY_ENDPOINT")]
    pub proxy_endpoint: Option<String>,
    /// Namespace of the node's lease.
    #[arg(long, value_name = "NAME", env = "VMLET_AGENT_NAMESPACE")]
    pub namespace: Option<String>,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS", env = "VMLET_AGENT_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Minimum severity that is logged, also per module.
    #[arg(long, value_name = "LEVEL", env = "VMLET_AGENT_LOG_LEVEL")]
    pub log_level: Option<Filter>,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or is not valid.
    #[error(transparent)]
    File(#[from] settings::Error),
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
            proxy_endpoint: "unix:///run/vmlet/criproxy.sock".to_owned(),
            namespace: crds::names::NAMESPACE.to_owned(),
            boot_id_file: boot_id::KERNEL.into(),
            health_listen: None,
            log: Log::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            completed_tasks_s: 600,
            progress_s: 5,
            guest_facts_s: 5,
            orphan_look_s: 600,
            orphan_confirm_s: 3600,
            orphan_remove_after_s: 0,
        }
    }
}

impl Limits {
    pub(crate) const fn completed_tasks(&self) -> Duration {
        Duration::from_secs(self.completed_tasks_s as u64)
    }

    pub(crate) const fn progress(&self) -> Duration {
        Duration::from_secs(self.progress_s as u64)
    }

    pub(crate) const fn guest_facts(&self) -> Duration {
        Duration::from_secs(self.guest_facts_s as u64)
    }

    pub(crate) fn orphans(&self) -> Times {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let confirm = seconds(self.orphan_confirm_s);
        Times {
            sweep: seconds(self.orphan_look_s),
            confirm,
            remove_after: (self.orphan_remove_after_s > 0)
                .then(|| seconds(self.orphan_remove_after_s)),
        }
    }
}

/// Reads, overrides and checks. Without `path` the usual file is read if it is there.
///
/// # Errors
///
/// [`Error`] for whatever makes the settings unusable.
pub fn load(path: Option<&Path>, overrides: Overrides) -> Result<Config, Error> {
    let mut config: Config = settings::load(path, DEFAULT_FILE)?;
    set(&mut config.node, overrides.node);
    set(&mut config.kubeconfig, overrides.kubeconfig.map(Some));
    set(&mut config.node_endpoint, overrides.node_endpoint);
    set(&mut config.proxy_endpoint, overrides.proxy_endpoint);
    set(&mut config.namespace, overrides.namespace);
    set(&mut config.health_listen, overrides.health_listen.map(Some));
    set(&mut config.log.level, overrides.log_level);
    check(&config)?;
    Ok(config)
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
    if limits.orphan_look_s == 0 {
        return wrong("limits.orphan_look_s", "must be at least 1");
    }
    if (1..limits.orphan_confirm_s).contains(&limits.orphan_remove_after_s) {
        return wrong(
            "limits.orphan_remove_after_s",
            "must be 0, or at least limits.orphan_confirm_s",
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
