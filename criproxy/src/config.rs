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
    /// Where the learned owners and the last-known lists are kept.
    #[serde(default = "state_dir")]
    pub state_dir: PathBuf,
    /// File with the kernel's boot id.
    #[serde(default = "boot_id_file")]
    pub boot_id_file: PathBuf,
    /// The runtime of ordinary pods.
    pub primary: Primary,
    /// The other runtimes.
    #[serde(default)]
    pub secondary: Vec<Secondary>,
    /// Where metrics are served; nowhere when absent.
    pub metrics: Option<Metrics>,
    /// What is said on standard error.
    #[serde(default)]
    pub log: Log,
    /// Times.
    #[serde(default)]
    pub limits: Limits,
}

/// The runtime of ordinary pods.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Primary {
    /// Its name in messages and metrics, and as a value of `kubernetes.io/target-runtime`.
    pub name: String,
    /// Its CRI socket.
    pub socket: PathBuf,
}

/// A runtime that serves some pods.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secondary {
    /// Its name in messages, metrics, conditions and the state directory.
    pub name: String,
    /// Its CRI socket.
    pub socket: PathBuf,
    /// RuntimeClass handlers that it serves.
    #[serde(default)]
    pub handlers: Vec<String>,
    /// Values of the annotation `kubernetes.io/target-runtime` that mean it; its name when absent.
    pub target_runtimes: Option<Vec<String>>,
    /// Image names that begin so are its.
    #[serde(default)]
    pub image_prefixes: Vec<String>,
    /// How its ids of 64 hex digits end.
    pub id_suffix: Option<String>,
}

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Loopback address and port of the HTTP server for `/metrics`.
    pub listen: SocketAddr,
}

/// Times, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Longest wait for a secondary in a call that concerns several runtimes.
    pub fanout_timeout_ms: u64,
    /// Longest wait for a runtime to accept a connection.
    pub connect_timeout_ms: u64,
    /// Longest time that calls in progress are given when the proxy ends.
    pub drain_ms: u64,
    /// How long a secondary that came back without the sandboxes it had is not believed.
    pub empty_grace_ms: u64,
    /// How long a runtime that failed again and again is not asked for lists.
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
    /// Longest wait for a secondary in a call that concerns several runtimes.
    pub const fn fanout(&self) -> Duration {
        Duration::from_millis(self.fanout_timeout_ms)
    }

    /// Longest wait for a runtime to accept a connection.
    pub const fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// Longest time that calls in progress are given when the proxy ends.
    pub const fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    /// How long a secondary that came back without the sandboxes it had is not believed.
    pub const fn empty_grace(&self) -> Duration {
        Duration::from_millis(self.empty_grace_ms)
    }

    /// How long a runtime that failed again and again is not asked for lists.
    pub const fn breaker_open(&self) -> Duration {
        Duration::from_millis(self.breaker_open_ms)
    }
}

impl Secondary {
    /// Values of the annotation that mean it.
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
    /// Where the learned owners and the last-known lists are kept.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "VMLET_CRIPROXY_STATE_DIR"
    )]
    pub state_dir: Option<PathBuf>,
    /// Least severe level that is logged, also per module.
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
