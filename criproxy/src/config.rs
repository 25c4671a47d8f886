//! The proxy's settings.
//!
//! Invariant: a [`Config`] that was checked is free of contradictions.
//! Failure: [`Contradiction`] names what is wrong.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service::boot_id;
use service::settings::{Problem, Settings, Timespan};
use service::telemetry::Log;

mod check;

pub use check::Contradiction;

/// Settings of the proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Unix socket for kubelet, with mode 0600. A path that ends with `run/crio/crio.sock` is
    /// refused, because kubelet would treat the proxy as CRI-O.
    #[serde(default = "listen")]
    pub listen: PathBuf,
    /// Unix socket for `vmlet-agent`, which serves the status of the proxy and no other call. The
    /// agent mounts its directory, which should contain no other socket. Not served if empty.
    #[serde(default = "status_listen")]
    pub status_listen: PathBuf,
    /// User ID of the agent. The status socket belongs to this user; only this user, root and the
    /// user of the proxy can connect. `0`: the socket belongs to the user of the proxy.
    #[serde(default = "agent_uid")]
    pub agent_uid: u32,
    /// Directory for the learned owners and the last known lists. Each proxy needs its own
    /// directory.
    #[serde(default = "state_dir")]
    pub state_dir: PathBuf,
    /// File that contains the boot ID of the kernel.
    #[serde(default = "boot_id_file")]
    pub boot_id_file: PathBuf,
    /// The runtime of ordinary pods.
    pub primary: Primary,
    /// The other runtimes.
    #[serde(default)]
    pub secondary: Vec<Secondary>,
    /// Where metrics are served; not served if unset.
    pub metrics: Option<Metrics>,
    /// Log output on standard error.
    #[serde(default)]
    pub log: Log,
    /// Time limits and intervals.
    #[serde(default)]
    pub limits: Limits,
}

/// The runtime of ordinary pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Primary {
    /// Name of the runtime in messages and metrics, and as a value of
    /// `kubernetes.io/target-runtime`.
    pub name: String,
    /// CRI socket of the runtime.
    pub socket: PathBuf,
}

/// A runtime that serves some pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Secondary {
    /// Name of the runtime in messages, metrics, conditions and the state directory: 1 to 63 of
    /// `a-z`, `0-9` and `-`.
    pub name: String,
    /// CRI socket of the runtime.
    pub socket: PathBuf,
    /// RuntimeClass handlers that the runtime serves.
    #[serde(default)]
    pub handlers: Vec<String>,
    /// Values of the annotation `kubernetes.io/target-runtime` that select the runtime for pods
    /// without one of its handlers, such as `virtlet.cloud`. What applies to a RuntimeClass, such as
    /// policies, overhead and a node selector, does not apply to such pods. If empty, the annotation
    /// selects the runtime of images only, and pods need a handler.
    #[serde(default)]
    pub target_runtimes: Vec<String>,
    /// Prefixes of the image names that belong to the runtime. The longest match decides.
    #[serde(default)]
    pub image_prefixes: Vec<String>,
    /// Suffix of the runtime's IDs of 64 hexadecimal digits.
    pub id_suffix: Option<String>,
}

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Loopback address and port of the HTTP server for `/metrics`.
    pub listen: SocketAddr,
}

/// Time limits and intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Timeout for a secondary in a call to several runtimes.
    pub fanout_timeout: Timespan,
    /// Timeout for a connection to a runtime.
    pub connect_timeout: Timespan,
    /// Maximum time for calls in progress to finish when the proxy shuts down.
    pub drain: Timespan,
    /// Time for which the proxy does not trust a secondary that returned without the sandboxes it
    /// had.
    pub empty_grace: Timespan,
    /// Time for which the proxy requests no lists from a runtime that failed repeatedly.
    pub breaker_open: Timespan,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fanout_timeout: Timespan::from_millis(2_000),
            connect_timeout: Timespan::from_millis(500),
            drain: Timespan::from_millis(500),
            empty_grace: Timespan::from_millis(30_000),
            breaker_open: Timespan::from_millis(3_000),
        }
    }
}

impl Settings for Config {
    const PROGRAM: &'static str = "vmlet-criproxy";
    const PREFIX: &'static str = "VMLET_CRIPROXY";
    const FILE: &'static str = "/etc/vmlet/criproxy.toml";
    // Only a file can name the runtimes.
    const IS_FILE_REQUIRED: bool = true;
    const MINIMAL: &'static str = "[primary]\nname = \"\"\nsocket = \"\"\n";

    fn check(&self) -> Result<(), Problem> {
        Ok(self.refuse_contradictions()?)
    }
}

fn listen() -> PathBuf {
    "/run/vmlet/criproxy.sock".into()
}

fn status_listen() -> PathBuf {
    "/run/vmlet/proxy/status.sock".into()
}

fn agent_uid() -> u32 {
    service::listener::AGENT_UID
}

fn state_dir() -> PathBuf {
    "/var/lib/vmlet/criproxy".into()
}

fn boot_id_file() -> PathBuf {
    boot_id::KERNEL.into()
}

#[cfg(test)]
mod tests;
