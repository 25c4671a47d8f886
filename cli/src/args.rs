//! The command line.
//!
//! Invariant: every option is documented here, and nothing else reads the environment for it. What
//! belongs to a kind of verbs (the cluster's flags, the node's socket) may precede the verb,
//! too, and is shown only with these.
//! Failure: clap prints usage and exits with 2.

mod tips;

use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::called;
use crate::cluster::ClusterArgs;
use crate::commands::{
    backup, clone, completion, console, create, delete, doctor, events, export, group, image,
    import, list, logs, machine_console, machine_logs, node_export, node_images, node_manifests,
    node_pull, node_upload, port_forward, power, ps, publish, recover, restore, rm, run, scp,
    snapshot, ssh, ssh_config, status, stop, trial, uninstall,
};
use crate::context::Endpoint;

const AFTER: &str = "\
The help of each cluster command lists the flags that choose the cluster (--kubeconfig, --context, -n, --as and others,
as in kubectl), such as `vmletctl list --help`. The help of each node command lists --endpoint, the socket of the
daemon, such as `vmletctl node ps --help`.
Exit codes: 0 success; 1 refused or failed; 2 invalid command line.";

/// The daemon's socket on each node.
pub(crate) const DAEMON: &str = "unix:///run/vmlet/vmlet.sock";

/// Manages the virtual machines of a Kubernetes cluster, and the pods of this node without Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vmletctl", version, after_help = AFTER)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Selects the daemon.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeArgs {
    /// Socket of the daemon.
    #[arg(
        long,
        env = "CONTAINER_RUNTIME_ENDPOINT",
        default_value = DAEMON
    )]
    pub(crate) endpoint: Endpoint,
}

/// Verbs of this node, which are not named twice for `node`.
pub(crate) const OF_THE_NODE: [&str; 7] = ["node", "run", "ps", "rm", "images", "pull", "doctor"];

/// The command line's description.
pub(crate) fn command() -> clap::Command {
    // Before the verb all flags are accepted, after it those of its kind are shown.
    let before = |command: clap::Command| {
        command.mut_args(|arg| match arg.get_help_heading() {
            Some(_) => arg.global(true).hide(true),
            None => arg,
        })
    };
    let mut command = before(Args::command());
    for verb in OF_THE_NODE {
        command = command.mut_subcommand(verb, |verb| {
            if verb.has_subcommands() {
                let names: Vec<_> = verb
                    .get_subcommands()
                    .map(|v| v.get_name().to_owned())
                    .collect();
                names
                    .iter()
                    .fold(verb, |node, name| node.mut_subcommand(name, with_endpoint))
            } else {
                with_endpoint(verb)
            }
        });
    }
    command
}

/// Shows the socket among the verb's options.
fn with_endpoint(verb: clap::Command) -> clap::Command {
    let node = NodeArgs::augment_args(clap::Command::new("node"));
    verb.args(node.get_arguments().cloned())
}

/// The command line of this process.
pub(crate) fn parse() -> Args {
    let mut command = command();
    if let Some(name) = called::plugin() {
        command = command.bin_name(name);
    }
    let matches = command.try_get_matches();
    let matches = matches.unwrap_or_else(|error| tips::corrected(error).exit());
    Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the virtual machines of a cluster.
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show details of a virtual machine: conditions, tasks, pod, newest events.
    #[command(visible_alias = "describe")]
    Status(status::StatusArgs),
    /// Show the events of a virtual machine, its pods and its tasks.
    Events(events::EventsArgs),
    /// Print the console log of a virtual machine, or of a VM pod.
    Logs(machine_logs::LogsArgs),
    /// Show the images that virtual machines are made from, and pull them to nodes.
    #[command(subcommand)]
    Image(image::ImageArgs),
    /// Create a virtual machine, or print its manifest.
    #[command(subcommand)]
    Create(create::CreateArgs),
    /// Make a virtual machine of an OVF package (OVA), as VMware and VirtualBox export it.
    ///
    /// Checks the package, sends its disk to a node as `image upload` does, and creates the machine. A
    /// report says what the machine does not have as the package says it. Needs the right to run programs
    /// in the pods of Vmlet (pods/exec in its namespace), which administrators of the cluster have.
    Import(Box<import::ImportArgs>),
    /// Show and power groups of virtual machines.
    #[command(subcommand)]
    Group(group::GroupArgs),
    /// Start virtual machines.
    ///
    /// Changes the desired state of a machine whose desired state is off; sends a start request to
    /// a machine that starts on request; resumes a suspended machine.
    Start(power::StartArgs),
    /// Stop virtual machines: send each guest a power-off request.
    ///
    /// Changes the desired state of a machine that always runs to off; sends a stop request to a
    /// machine that starts on request. The disk is kept.
    Stop(power::StopArgs),
    /// Restart virtual machines: send each guest a power-off request, then start a new pod with the
    /// same disk.
    Restart(power::RestartArgs),
    /// Suspend virtual machines: save their memory to disk and delete their pods.
    Suspend(power::VerbArgs),
    /// Resume suspended virtual machines from their saved memory.
    Resume(power::VerbArgs),
    /// Pause virtual machines: pause the vCPUs and keep the memory in RAM.
    Pause(power::VerbArgs),
    /// Unpause virtual machines.
    Unpause(power::VerbArgs),
    /// Delete virtual machines and their root disks; send each guest a power-off request first.
    ///
    /// Disks that are PersistentVolumeClaims are kept.
    Delete(delete::DeleteArgs),
    /// Write the disk of a stopped virtual machine, of a snapshot or in a backup, to a file of this computer.
    ///
    /// A machine whose snapshot or backup is exported may run. The file is qcow2 and stands alone. A call that was interrupted is continued by the same
    /// call, unless the disk has changed. Needs the right to run programs in the pods of Vmlet
    /// (pods/exec in its namespace), which administrators of the cluster have.
    Export(export::ExportArgs),
    /// Push the disk of a stopped virtual machine, of a snapshot or in a backup, to a registry as a container disk.
    ///
    /// Vmlet and KubeVirt boot the image. The disk goes from the node to the registry through this
    /// computer, which keeps nothing of it; the registry gets the credentials of `docker login`. The
    /// same disk makes the same image. Needs the right to run programs in the pods of Vmlet
    /// (pods/exec in its namespace), which administrators of the cluster have.
    Publish(publish::PublishArgs),
    /// Create the virtual machines again whose disks a node has and that the cluster does not know.
    ///
    /// For a cluster whose data were lost, or whose backup is older than its machines. Each machine
    /// gets its namespace, name and specification back, and takes its disk over. Nothing that exists
    /// is changed. Needs the right to run programs in the pods of Vmlet (pods/exec in its namespace)
    /// and to write vmlet.dev.protected/fields, which administrators of the cluster have.
    Recover(recover::RecoverArgs),
    /// Take a snapshot of the root disk of a virtual machine, while it runs or is off.
    ///
    /// The node takes it; --wait waits for that. Without --quiesce the disk is as after a cut of the
    /// power.
    Snapshot(snapshot::SnapshotArgs),
    /// List the snapshots of a virtual machine as a tree; its disk descends from the one with *.
    Snapshots(snapshot::list::SnapshotsArgs),
    /// Revert a virtual machine to a snapshot: its disk, specification and power state.
    ///
    /// Powers the machine off without its guest. What the guest has written since the snapshot is
    /// lost.
    Revert(snapshot::revert::RevertArgs),
    /// Create a virtual machine whose root disk is a copy of that of another one, or of a snapshot of it.
    ///
    /// It has the specification of the other machine, without UUIDs, addresses, host name, volumes and group. Without
    /// --snapshot one that runs is copied as after a power failure, and one that is off must stay off meanwhile.
    Clone(clone::CloneArgs),
    /// Make, list and verify backups of virtual machines.
    #[command(subcommand)]
    Backup(backup::BackupArgs),
    /// Create a virtual machine whose root disk is made from a backup.
    ///
    /// It has the specification that the backup has on record, without UUIDs, addresses, host name, volumes and group.
    /// The machine of the backup is not changed, and may not exist any more.
    Restore(restore::RestoreArgs),
    /// Connect to the serial console of a virtual machine, or of a VM pod; Ctrl-] leaves.
    ///
    /// Goes through the API server. After an interruption and with a new instance of the machine it connects
    /// again. If standard input is no terminal, it is sent as it is. Needs the right pods/attach.
    Console(machine_console::ConsoleArgs),
    /// Forward ports of this computer to TCP ports of a guest, until Ctrl-C.
    ///
    /// Goes through the API server. Each connection stands for itself, so that the command outlives restarts of
    /// the machine. Needs the right pods/portforward.
    PortForward(port_forward::PortForwardArgs),
    /// Log in to the guest of a virtual machine with the local ssh program.
    ///
    /// Goes through the API server: ssh runs `port-forward --stdio` as its ProxyCommand. Host keys are in
    /// ~/.ssh/vmlet_known_hosts, for the UID of the machine. Needs the right pods/portforward.
    Ssh(ssh::SshArgs),
    /// Copy files to and from the guest of a virtual machine with the local scp program.
    ///
    /// Reaches the guest as `ssh` does. Needs the right pods/portforward.
    Scp(scp::ScpArgs),
    /// Print blocks for ~/.ssh/config, with which ssh and other programs reach guests as NAME.NAMESPACE.vmlet.
    SshConfig(ssh_config::SshConfigArgs),
    /// Boot a guest as a pod, wait until it is up, and delete the pod.
    ///
    /// Shows that the nodes of the cluster run virtual machines, before there is any. Needs the
    /// rights to create, get and delete pods of the namespace, and to get their logs.
    Try(trial::TryArgs),
    /// Check what has to be removed before Vmlet is; if nothing is left, allow the removal.
    ///
    /// Deletes nothing. Shows virtual machines, tasks, VM pods and disks on nodes, in the order in
    /// which they are to be removed, and exits with code 1 while there are any. If nothing is left,
    /// it lets an administrator delete the CustomResourceDefinitions of Vmlet, which the cluster
    /// refuses otherwise, and no machine can be created until they are deleted, or until --cancel
    /// takes that back. Needs the rights of an administrator of the cluster.
    Uninstall(uninstall::UninstallArgs),
    /// Print the version of this program.
    Version,
    /// Print a shell completion script for commands and names.
    Completion(completion::CompletionArgs),

    /// Manage pods on this node without Kubernetes.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Run a pod on this node from its manifest; short for `node run`.
    Run(run::RunArgs),
    /// List pods of this node; short for `node ps`.
    Ps(ps::PsArgs),
    /// Remove a stopped pod of this node; short for `node rm`.
    Rm(rm::RmArgs),
    /// List the images in the store of this node; short for `node images`.
    Images(node_images::NodeImagesArgs),
    /// Pull an image into the store of this node; short for `node pull`.
    Pull(node_pull::NodePullArgs),
    /// Check this node and show how to correct problems; short for `node doctor`.
    Doctor(doctor::DoctorArgs),
}

/// Commands for the daemon of this node.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Run a pod from a Kubernetes Pod manifest and follow its console.
    Run(run::RunArgs),
    /// List pods.
    Ps(ps::PsArgs),
    /// Print the console log of a pod.
    Logs(logs::LogsArgs),
    /// Connect to the serial console of a pod; Ctrl-] disconnects.
    Console(console::ConsoleArgs),
    /// Stop the VM of a pod and release its network.
    Stop(stop::StopArgs),
    /// Remove a stopped pod and its disk and log.
    Rm(rm::RmArgs),
    /// List the images in the store, their users, and pulls in progress.
    Images(node_images::NodeImagesArgs),
    /// Pull an image into the store, and show the progress until it is there.
    ///
    /// An interrupt ends the pull; the next one continues it. Registries that need credentials
    /// refuse it: pods get them from their image pull secrets.
    Pull(node_pull::NodePullArgs),
    /// Check this node and show how to correct problems.
    Doctor(doctor::DoctorArgs),
    /// Write a disk of this node to standard output, for `export`.
    #[command(hide = true)]
    ExportDisk(node_export::NodeExportArgs),
    /// Give a file from standard input to the daemon, for `image upload`.
    #[command(hide = true)]
    UploadImage(node_upload::NodeUploadArgs),
    /// Write the disks of this node and their manifests to standard output, for `recover`.
    Manifests(node_manifests::NodeManifestsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, clap::Error> {
        let matches = command().try_get_matches_from(line.split(' '))?;
        Args::from_arg_matches(&matches)
    }

    #[test]
    fn options_do_not_contradict_each_other() {
        command().debug_assert();
    }

    #[test]
    fn flags_of_the_cluster_may_stand_on_either_side_of_the_verb() {
        for line in [
            "vmletctl -n x --context c list",
            "vmletctl list -n x --context c",
            "vmletctl -n x list --context c",
        ] {
            let matches = command().try_get_matches_from(line.split(' ')).unwrap();
            let (_, list) = matches.subcommand().unwrap();
            let flag = |name| list.get_one::<String>(name).cloned();
            let found = (flag("namespace"), flag("context"));
            assert_eq!(found, (Some("x".into()), Some("c".into())), "{line}");
        }
    }

    #[test]
    fn the_socket_may_stand_on_either_side_of_the_verb() {
        let socket: Endpoint = "/run/other.sock".parse().unwrap();
        for line in [
            "vmletctl --endpoint /run/other.sock ps",
            "vmletctl ps --endpoint /run/other.sock",
            "vmletctl node ps --endpoint /run/other.sock",
            "vmletctl --endpoint /run/other.sock node ps",
        ] {
            assert_eq!(parsed(line).unwrap().node.endpoint, socket, "{line}");
        }
        let line = "vmletctl -n x node console web".split(' ');
        let matches = command().try_get_matches_from(line).unwrap();
        let (_, node) = matches.subcommand().unwrap();
        let (_, console) = node.subcommand().unwrap();
        let namespace = console.get_one::<String>("namespace");
        assert_eq!(namespace.map(String::as_str), Some("x"));
    }

    #[test]
    fn a_verb_shows_the_flags_of_its_kind_only() {
        let help = |verb: &[&str]| {
            let mut command = command();
            command.build();
            let found = verb.iter().fold(&mut command, |command, verb| {
                command.find_subcommand_mut(verb).unwrap()
            });
            found.render_long_help().to_string()
        };
        let list = help(&["list"]);
        assert!(list.contains("--kubeconfig") && !list.contains("--endpoint"));
        for verb in [&["ps"][..], &["node", "ps"]] {
            let ps = help(verb);
            assert!(ps.contains("--endpoint") && !ps.contains("--kubeconfig"));
            assert!(ps.starts_with("List pods"), "{ps}");
        }
    }

    #[test]
    fn a_permission_is_taken_back_without_a_look() {
        assert!(parsed("vmletctl uninstall --cancel").is_ok());
        for flag in ["--check", "--keep-disks", "--check --node n1"] {
            let line = format!("vmletctl uninstall --cancel {flag}");
            assert!(parsed(&line).is_err(), "{line}");
        }
    }

    #[test]
    fn ports_or_standard_streams_are_forwarded() {
        for flags in ["8080:80 [::1]:2222:22", "--stdio 22", "tcp/80"] {
            let line = format!("vmletctl port-forward vm/web {flags} -n x");
            assert!(parsed(&line).is_ok(), "{line}");
        }
        for flags in ["", "--stdio 22 80", "--stdio 0", "udp/53", "x"] {
            let line = format!("vmletctl port-forward web {flags}");
            assert!(parsed(line.trim_end()).is_err(), "{line}");
        }
    }

    #[test]
    fn stop_logs_and_console_are_of_the_cluster_and_below_node_of_the_node() {
        let parse = |line: &str| parsed(line).map(|args| args.command);
        assert!(matches!(parse("vmletctl logs web"), Ok(Command::Logs(_))));
        let node = parse("vmletctl node logs web");
        assert!(matches!(node, Ok(Command::Node(NodeCommand::Logs(_)))));
        assert!(matches!(parse("vmletctl stop web"), Ok(Command::Stop(_))));
        let console = parse("vmletctl console web --escape none");
        assert!(matches!(console, Ok(Command::Console(_))));
        let node = parse("vmletctl node console web --escape ^a");
        assert!(matches!(node, Ok(Command::Node(NodeCommand::Console(_)))));
        assert!(parse("vmletctl console web --escape ctrl-a").is_err());
        let node = parse("vmletctl node stop web");
        assert!(matches!(node, Ok(Command::Node(NodeCommand::Stop(_)))));
        assert!(parse("vmletctl stop web --force --grace-period 3").is_err());
        assert!(parse("vmletctl stop").is_err());
        let flags = "vmletctl stop a b -n x --context c --kubeconfig k --as eve --as-group g";
        assert!(parse(flags).is_ok());
    }
}
