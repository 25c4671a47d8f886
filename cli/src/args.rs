//! The command line.
//!
//! Invariant: every option is documented here, and nothing else reads the environment for it.
//! Failure: clap prints usage and exits with 2.

use clap::{Parser, Subcommand};

use crate::commands::{console, doctor, logs, ps, rm, run, stop};
use crate::context::Endpoint;

/// Runs virtual machines as pods on this node, without Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vmletctl", version)]
pub(crate) struct Args {
    /// Socket of the daemon.
    #[arg(
        long,
        global = true,
        env = "CONTAINER_RUNTIME_ENDPOINT",
        default_value = "unix:///run/vmlet/vmlet.sock"
    )]
    pub(crate) endpoint: Endpoint,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a pod from a Kubernetes Pod manifest and follow its console.
    Run(run::RunArgs),
    /// List pods.
    Ps(ps::PsArgs),
    /// Print the console log of a pod.
    Logs(logs::LogsArgs),
    /// Talk to the serial console of a pod; Ctrl-] leaves.
    Console(console::ConsoleArgs),
    /// Stop a pod's VM and give back its network.
    Stop(stop::StopArgs),
    /// Remove a stopped pod with its disk and log.
    Rm(rm::RmArgs),
    /// Check this node and say what to do about what is amiss.
    Doctor(doctor::DoctorArgs),
}

/// Names one pod.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodArg {
    /// Name of the pod, or the beginning of its id or of its container's id.
    #[arg(value_name = "NAME|ID")]
    pub(crate) pod: String,

    /// Namespace of the pod, when it is given by name.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
}
