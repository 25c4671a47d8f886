//! `create vm`: writes a manifest, and applies it on request.
//!
//! Invariant: what is printed is what `--apply` would send.
//! Failure: a combination that the schema forbids is refused by the server, with its sentence.

mod manifest;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use crds::VirtualMachine;
use crds::vm::{GuestInfoMatch, HeartbeatProbe, ReadinessProbe, TcpSocketProbe};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use self::manifest::manifest;
use super::follow::{Goal, Target, follow};
use crate::cluster::{ClusterArgs, ClusterError};

/// What to create.
///
/// Create classes and images with kubectl: `kubectl explain vmclass.spec`, `kubectl explain
/// vmimage.spec`.
#[derive(Debug, Subcommand)]
pub(crate) enum CreateArgs {
    /// Create a virtual machine, or print its manifest.
    Vm(Box<VmArgs>),
}

/// Options of a new machine.
#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// Name of the machine.
    name: String,
    /// VirtualMachineImage in the namespace or, if there is none, ClusterVirtualMachineImage from
    /// which the root disk is made.
    #[arg(long, value_name = "IMAGE", required_unless_present = "root_claim")]
    image: Option<String>,
    /// PersistentVolumeClaim to use as the root disk, instead of an image.
    #[arg(long, value_name = "CLAIM", conflicts_with = "image")]
    root_claim: Option<String>,
    /// VirtualMachineClass that defines the size; required unless --memory is given.
    #[arg(long, value_name = "CLASS", required_unless_present = "memory", conflicts_with_all = ["cpus", "memory"])]
    class: Option<String>,
    /// Number of virtual CPUs; requires --memory.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,
    /// Guest memory, such as 512Mi or 2Gi, instead of a class.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<String>,
    /// When the machine runs.
    #[arg(long, value_enum, default_value_t = Run::Always)]
    run_strategy: Run,
    /// Size of the root disk, such as 20Gi [default: the size of the image].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk_size: Option<String>,
    /// StorageClass of the root disk [default: a disk local to the node].
    #[arg(long, value_name = "CLASS")]
    storage_class: Option<String>,
    /// Additional disk from a PersistentVolumeClaim; may be repeated.
    #[arg(long, value_name = "NAME=CLAIM", value_parser = pair)]
    volume: Vec<(String, String)>,
    /// Secret that contains the cloud-init user data, and the key in it [default key: user-data].
    #[arg(long, value_name = "SECRET[/KEY]")]
    user_data: Option<String>,
    /// SSH public key for the default user, or a file that contains it; may be repeated. The guest
    /// needs cloud-init.
    #[arg(long, value_name = "KEY|FILE", value_parser = ssh_key)]
    ssh_key: Vec<String>,
    /// NetworkAttachmentDefinition, `name` or `namespace/name`, of an additional NIC; may be
    /// repeated. The first NIC is on the pod network.
    #[arg(long, value_name = "NETWORK", conflicts_with = "no_network")]
    network: Vec<String>,
    /// MAC address of the first NIC [default: derived from the pod].
    #[arg(long, value_name = "MAC", conflicts_with = "no_network")]
    mac: Option<String>,
    /// Disable the network.
    #[arg(long)]
    no_network: bool,
    /// Host name of the guest [default: the name of the machine].
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// When the machine is ready: a TCP port of the guest opens, its guest agent answers, or it
    /// publishes a value [default: at the first sign of life of the guest].
    #[arg(long, value_name = "tcp=PORT|heartbeat|info=KEY[=REGEX]", value_parser = probe)]
    readiness_probe: Option<ReadinessProbe>,
    /// Label of the machine; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Apply the manifest: create the machine, or update one that was created with --apply. Without
    /// this option, only print the manifest as YAML.
    #[arg(long)]
    apply: bool,
    /// With --apply: print each step until the machine runs, or is created with --run-strategy Halted or
    /// Manual.
    #[arg(short, long, alias = "wait", requires = "apply")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(super) enum Run {
    /// The machine always runs; it restarts when it ends.
    Always,
    /// The machine runs until it powers itself off; it restarts after a failure.
    RerunOnFailure,
    /// The machine runs after a manual start; it does not restart.
    Manual,
    /// The machine is created but does not run.
    Halted,
    /// The machine runs once.
    Once,
}

impl Run {
    /// What a new machine becomes by itself.
    pub(super) const fn goal(self) -> Goal {
        match self {
            Self::Always | Self::RerunOnFailure | Self::Once => Goal::Ready,
            Self::Manual | Self::Halted => Goal::Stopped,
        }
    }
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("a name and a value with = between are needed")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn probe(text: &str) -> Result<ReadinessProbe, String> {
    let (kind, rest) = text.split_once('=').unwrap_or((text, ""));
    let mut probe = ReadinessProbe::default();
    match kind {
        "tcp" => {
            let port = rest.parse().ok().filter(|port| *port > 0);
            let port = port.ok_or("tcp= needs a port from 1 to 65535")?;
            probe.tcp_socket = Some(TcpSocketProbe { port, host: None });
        }
        "heartbeat" if text == kind => probe.guest_heartbeat = Some(HeartbeatProbe::default()),
        "info" if !rest.is_empty() => {
            let (key, value) = match rest.split_once('=') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (rest, None),
            };
            let key = key.to_owned();
            probe.guest_info = vec![GuestInfoMatch { key, value }];
        }
        _ => return Err("one of tcp=PORT, heartbeat and info=KEY[=REGEX] is needed".into()),
    }
    Ok(probe)
}

/// A quantity of bytes, as it was written.
fn size(text: &str) -> Result<String, String> {
    match podspec::parse_quantity(text) {
        Ok(0) => Err("a size above 0 is needed, such as 512Mi or 2Gi".into()),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a line is one of `authorized_keys`: the type of a key, perhaps behind options, and the
/// key in base64.
fn is_public_key(line: &str) -> bool {
    let types = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-sha2-"];
    let words: Vec<_> = line.split_whitespace().collect();
    let is_base64 = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
        word.chars().all(plain)
    };
    words
        .windows(2)
        .any(|pair| types.iter().any(|name| pair[0].starts_with(name)) && is_base64(pair[1]))
}

/// A key has a space in it, between its type and the rest; the name of a file is taken for one
/// otherwise.
fn ssh_key(text: &str) -> Result<String, String> {
    let is_key = text.trim().contains(' ');
    let key = if is_key {
        text.to_owned()
    } else {
        let path = text.strip_prefix('@').unwrap_or(text);
        std::fs::read_to_string(path)
            .map_err(|e| format!("it is no key, and no file that can be read: {e}"))?
    };
    let mut lines = key.lines().filter(|line| !line.trim().is_empty());
    match (lines.next(), lines.next()) {
        (Some(line), _) if line.contains("PRIVATE KEY") => {
            Err("that is a private key: give the public one, whose file ends in .pub".into())
        }
        (Some(line), None) if is_public_key(line) => Ok(line.trim().to_owned()),
        _ => Err("one public key is needed, such as `ssh-ed25519 AAAA… me@here`".into()),
    }
}

pub(crate) async fn run(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let CreateArgs::Vm(args) = args;
    let mut object = manifest(args);
    if !args.apply {
        super::print(&super::yaml(&object)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = args.cluster.connect().await?;
    object["metadata"]["namespace"] = json!(cluster.namespace);
    let params = PatchParams::apply("vmletctl");
    let about = |error| ClusterError::about(&cluster.namespace, &args.name, error);
    let api = cluster.machines();
    let before = api.get_opt(&args.name).await.map_err(about)?;
    let after = api
        .patch(&args.name, &params, &Patch::Apply(&object))
        .await
        .map_err(about)?;
    let done = done(before.as_ref(), &after);
    super::print(&format!("virtualmachine.vmlet.dev/{} {done}\n", args.name))?;
    if args.watch {
        let target = Target::new(&after, args.run_strategy.goal());
        follow(&args.cluster, vec![target]).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The result of applying, in kubectl's terms. The controller's writes of the status do not count.
fn done(before: Option<&VirtualMachine>, after: &VirtualMachine) -> &'static str {
    match before {
        Some(before) if before.metadata.uid != after.metadata.uid => "created",
        Some(before)
            if before.metadata.generation == after.metadata.generation
                && before.metadata.labels == after.metadata.labels =>
        {
            "unchanged"
        }
        Some(_) => "configured",
        None => "created",
    }
}

#[cfg(test)]
mod tests;
