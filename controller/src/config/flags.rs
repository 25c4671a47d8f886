//! The command line, and the environment beside it.
//!
//! Invariant: a flag and its variable mean the same key of the file; the flag wins.
//! Failure: clap says what is wrong and shows the usage.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use service::settings::set;
use service::telemetry::{Filter, Format};

use super::Config;

/// Manages the life cycle of virtual machines that run as pods.
#[derive(Debug, Parser)]
#[command(name = "vmlet-controller", version)]
pub struct Args {
    /// Path to the configuration file.
    #[arg(long, value_name = "FILE", env = "VMLET_CONTROLLER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Settings that win over the file.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// Settings from flags and the environment, which win over the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Overrides {
    /// Path to the kubeconfig file.
    #[arg(long, value_name = "FILE", env = "VMLET_CONTROLLER_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the controller's own objects.
    #[arg(long, env = "VMLET_CONTROLLER_NAMESPACE")]
    pub namespace: Option<String>,
    /// Address and port of the HTTP server for health and metrics.
    #[arg(long, value_name = "ADDRESS:PORT", env = "VMLET_CONTROLLER_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Maximum number of concurrent reconcile passes.
    #[arg(long, value_name = "COUNT", env = "VMLET_CONTROLLER_WORKERS")]
    pub workers: Option<usize>,
    /// Identity of this process in the lease.
    #[arg(long, value_name = "NAME", env = "VMLET_CONTROLLER_IDENTITY")]
    pub identity: Option<String>,
    /// Whether the controller acquires the lease before it starts to reconcile.
    #[arg(long, value_name = "BOOL", env = "VMLET_CONTROLLER_LEASE")]
    pub lease: Option<bool>,
    /// Minimum severity that is logged, also per module.
    #[arg(long, value_name = "LEVEL", env = "VMLET_CONTROLLER_LOG_LEVEL")]
    pub log_level: Option<Filter>,
    /// Log format: text or json.
    #[arg(long, value_name = "FORM", env = "VMLET_CONTROLLER_LOG_FORMAT")]
    pub log_format: Option<Format>,
}

impl Overrides {
    pub(super) fn apply(self, config: &mut Config) {
        set(&mut config.kubeconfig, self.kubeconfig.map(Some));
        set(&mut config.namespace, self.namespace);
        set(&mut config.listen, self.listen);
        set(&mut config.runner.workers, self.workers);
        set(&mut config.lease.identity, self.identity);
        set(&mut config.lease.enabled, self.lease);
        set(&mut config.log.level, self.log_level);
        set(&mut config.log.format, self.log_format);
    }
}
