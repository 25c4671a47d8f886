//! A cluster: how to reach it, and what its answers mean to a user.
//!
//! Invariant: every request has a deadline; no command reads more of the environment than kubectl does.
//! Failure: [`ClusterError`], each with advice.

mod connect;
mod error;
mod machine;

use clap::Args;

pub(crate) use connect::Cluster;
pub(crate) use error::{ClusterError, advice};

/// Which cluster, and as whom; as kubectl's.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file [default: KUBECONFIG, ~/.kube/config, or the pod's service account].
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<std::path::PathBuf>,
    /// A context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// A cluster of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// A user of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// The namespace [default: the context's].
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Act as this user.
    #[arg(long = "as", value_name = "USER")]
    pub(crate) impersonate: Option<String>,
    /// Act as a member of this group; may be repeated.
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonate")]
    pub(crate) impersonate_groups: Vec<String>,
    /// Seconds that the API server may take to answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) request_timeout: u32,
}

/// Names machines.
#[derive(Debug, Clone, Args)]
pub(crate) struct Names {
    /// Names of virtual machines.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}
