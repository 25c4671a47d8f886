//! The command line.
//!
//! Invariant: every option is documented here, and nothing else reads the environment for it.
//! Failure: clap prints usage and exits with 2.

use clap::{Parser, Subcommand};

use crate::commands::{
    completion, console, create, doctor, events, list, logs, power, ps, rm, run, status, stop,
};
use crate::context::Endpoint;

/// Works with virtual machines: those of a cluster, and with pods of this node without Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vmletctl", version)]
pub(crate) struct Args {
    /// Socket of the daemon, for commands of this node.
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
    /// List virtual machines of a cluster.
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show everything about a virtual machine.
    #[command(visible_alias = "describe")]
    Status(status::StatusArgs),
    /// Show what was told about a virtual machine.
    Events(events::EventsArgs),
    /// Write the manifest of a virtual machine, or apply it.
    #[command(subcommand)]
    Create(create::CreateArgs),
    /// Let virtual machines run.
    Start(power::StartArgs),
    /// Let virtual machines power off.
    Stop(power::StopArgs),
    /// Replace the instances of virtual machines by new ones.
    Restart(power::RestartArgs),
    /// Save the memory of virtual machines and let them end.
    Suspend(power::VerbArgs),
    /// Let suspended virtual machines go on.
    Resume(power::VerbArgs),
    /// Let virtual machines stand still.
    Pause(power::VerbArgs),
    /// Let paused virtual machines run on.
    Unpause(power::VerbArgs),
    /// Print a script that lets a shell complete commands.
    Completion(completion::CompletionArgs),

    /// Commands for pods of this node, without Kubernetes.
    #[command(subcommand)]
    Node(NodeCommand),
    /// The same as `node run`.
    Run(run::RunArgs),
    /// The same as `node ps`.
    Ps(ps::PsArgs),
    /// The same as `node logs`.
    Logs(logs::LogsArgs),
    /// The same as `node console`.
    Console(console::ConsoleArgs),
    /// The same as `node rm`.
    Rm(rm::RmArgs),
    /// The same as `node doctor`.
    Doctor(doctor::DoctorArgs),
}

/// Commands that talk to the daemon of this node.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn stop_is_of_the_cluster_and_node_stop_of_the_node() {
        let parse = |line: &str| Args::try_parse_from(line.split(' ')).map(|args| args.command);
        assert!(matches!(parse("vmletctl stop web"), Ok(Command::Stop(_))));
        let node = parse("vmletctl node stop web");
        assert!(matches!(node, Ok(Command::Node(NodeCommand::Stop(_)))));
        assert!(parse("vmletctl stop web --force --grace-period 3").is_err());
        assert!(parse("vmletctl stop").is_err());
        let flags = "vmletctl stop a b -n x --context c --kubeconfig k --as eve --as-group g";
        assert!(parse(flags).is_ok());
    }
}
