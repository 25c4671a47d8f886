//! The proxy's settings: a TOML file, then flags and environment for four of them.
//!
//! Invariant: a [`Config`] that [`load`] returns is free of contradictions; unknown keys are refused.
//! Failure: [`Error`] says in a sentence what is wrong, with line and column where the file is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use service::boot_id;
use service::settings;
use service::settings::set;
use service::telemetry::{Filter, Log};

mod check;

pub use check::Contradiction;

/// Read when no file is named; then it must exist, because only it can name the runtimes.
pub const DEFAULT_FILE: &str = "/etc/vmlet/criproxy.toml";

/// Settings of the proxy.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Unix socket for kubelet; mode 0600.
    #[serde(default = "listen")]
    pub listen: PathBuf,
    /// Directory for the learned owners and the last known lists.
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Primary {
    /// Name of the runtime in messages and metrics, and as a value of `kubernetes.io/target-runtime`.
    pub name: String,
    /// CRI socket of the runtime.
    pub socket: PathBuf,
}

/// A runtime that serves some pods.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secondary {
    /// Name of the runtime in messages, metrics, conditions and the state directory.
    pub name: String,
    /// CRI socket of the runtime.
    pub socket: PathBuf,
    /// RuntimeClass handlers that the runtime serves.
    #[serde(default)]
    pub handlers: Vec<String>,
    /// Values of the annotation `kubernetes.io/target-runtime` that select the runtime. Defaults to its name.
    pub target_runtimes: Option<Vec<String>>,
    /// Prefixes of the image names that belong to the runtime.
    #[serde(default)]
    pub image_prefixes: Vec<String>,
    /// Suffix of the runtime's IDs of 64 hexadecimal digits.
    pub id_suffix: Option<String>,
}

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Loopback address and port of the HTTP server for `/metrics`.
    pub listen: SocketAddr,
}

/// Time limits and intervals, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Timeout for a secondary in a call to several runtimes.
    pub fanout_timeout_ms: u64,
    /// Timeout for a connection to a runtime.
    pub connect_timeout_ms: u64,
    /// Maximum time for calls in progress to finish when the proxy shuts down.
    pub drain_ms: u64,
    /// Time for which the proxy does not trust a secondary that returned without the sandboxes it had.
    pub empty_grace_ms: u64,
    /// Time for which the proxy requests no lists from a runtime that failed repeatedly.
    pub breaker_open_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fanout_timeout_ms: 2_000,
            connect_timeout_ms: 500,
            drain_ms: 500,
            empty_grace_ms: 30_000,
            breaker_open_ms: 3_000,
        }
    }
}

impl Limits {
    /// Timeout for a secondary in a call to several runtimes.
    pub const fn fanout(&self) -> Duration {
        Duration::from_millis(self.fanout_timeout_ms)
    }

    /// Timeout for a connection to a runtime.
    pub const fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// Maximum time for calls in progress to finish when the proxy shuts down.
    pub const fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    /// Time for which the proxy does not trust a secondary that returned without the sandboxes it had.
    pub const fn empty_grace(&self) -> Duration {
        Duration::from_millis(self.empty_grace_ms)
    }

    /// Time for which the proxy requests no lists from a runtime that failed repeatedly.
    pub const fn breaker_open(&self) -> Duration {
        Duration::from_millis(self.breaker_open_ms)
    }
}

impl Secondary {
    /// Values of the annotation that select the runtime.
    pub fn targets(&self) -> &[String] {
        self.target_runtimes
            .as_deref()
            .unwrap_or(std::slice::from_ref(&self.name))
    }
}

/// Settings from flags and the environment, which win over the file.
#[derive(Debug, Default, clap::Args)]
pub struct Overrides {
    /// Unix socket for kubelet.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "VMLET_CRIPROXY_LISTEN"
    )]
    pub listen: Option<PathBuf>,
    /// Directory for the learned owners and the last known lists.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "VMLET_CRIPROXY_STATE_DIR"
    )]
    pub state_dir: Option<PathBuf>,
    /// Minimum severity that is logged, also per module.
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "VMLET_CRIPROXY_LOG_LEVEL"
    )]
    pub log_level: Option<Filter>,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or is not valid.
    #[error(transparent)]
    File(#[from] settings::Error),
    /// Settings contradict each other or are out of range.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
}

/// Reads, overrides and checks.
///
/// # Errors
///
/// [`Error`] for whatever makes the settings unusable.
pub fn load(path: &Path, overrides: Overrides) -> Result<Config, Error> {
    let mut config: Config = settings::read(path)?;
    set(&mut config.listen, overrides.listen);
    set(&mut config.state_dir, overrides.state_dir);
    set(&mut config.log.level, overrides.log_level);
    config.check()?;
    Ok(config)
}

fn listen() -> PathBuf {
    "/run/vmlet/criproxy.sock".into()
}

fn state_dir() -> PathBuf {
    "/var/lib/vmlet/criproxy".into()
}

fn boot_id_file() -> PathBuf {
    boot_id::KERNEL.into()
}

#[cfg(test)]
mod tests;
