//! `create vm`: writes a manifest, and applies it when asked to.
//!
//! Invariant: what is printed is what `--apply` would send.
//! Failure: a combination that the schema forbids is refused by the server, with its sentence.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use crds::VirtualMachine;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::cluster::{ClusterArgs, ClusterError};

/// What to create.
///
/// Classes and images are made with kubectl: `kubectl explain vmclass.spec`, `kubectl explain vmimage.spec`.
#[derive(Debug, Subcommand)]
pub(crate) enum CreateArgs {
    /// Write the manifest of a virtual machine, or apply it.
    Vm(Box<VmArgs>),
}

/// A machine in options.
#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// Name of the machine.
    name: String,
    /// The VirtualMachineImage of the namespace, or else the ClusterVirtualMachineImage, that the root disk is made from.
    #[arg(long, value_name = "IMAGE", required_unless_present = "root_claim")]
    image: Option<String>,
    /// The claim of the root disk, instead of an image.
    #[arg(long, value_name = "CLAIM", conflicts_with = "image")]
    root_claim: Option<String>,
    /// The VirtualMachineClass that gives the size; this or --memory is needed.
    #[arg(long, value_name = "CLASS", required_unless_present = "memory", conflicts_with_all = ["cpus", "memory"])]
    class: Option<String>,
    /// Virtual CPUs, with --memory.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,
    /// Guest memory, such as 512Mi or 2Gi, instead of a class.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// When it runs.
    #[arg(long, value_enum, default_value_t = Run::Always)]
    run_strategy: Run,
    /// Size of the root disk, such as 20Gi [default: that of the image].
    #[arg(long, value_name = "SIZE")]
    disk_size: Option<String>,
    /// StorageClass of the root disk [default: a disk of the node].
    #[arg(long, value_name = "CLASS")]
    storage_class: Option<String>,
    /// One more disk from a claim; may be repeated.
    #[arg(long, value_name = "NAME=CLAIM", value_parser = pair)]
    volume: Vec<(String, String)>,
    /// Secret with cloud-init user data, and its key [default key: user-data].
    #[arg(long, value_name = "SECRET[/KEY]")]
    user_data: Option<String>,
    /// SSH public key for the default user, itself or its file; may be repeated. The guest needs cloud-init.
    #[arg(long, value_name = "KEY|FILE", value_parser = ssh_key)]
    ssh_key: Vec<String>,
    /// A label of the machine; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Create it, or change what was created so before. Without this its YAML is printed, and nothing is done.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Run {
    /// It runs; when it ends, it is started again.
    Always,
    /// It runs until it powers itself off; after a failure it is started again.
    RerunOnFailure,
    /// It runs when it is started by hand, and is not started again.
    Manual,
    /// It is made, and does not run.
    Halted,
    /// It runs one time.
    Once,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("a name and a value with = between are needed")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A key has a space in it, between its type and the rest; the name of a file is taken for one otherwise.
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
        (Some(line), None) if line.contains(' ') => Ok(line.trim().to_owned()),
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
    Ok(ExitCode::SUCCESS)
}

/// What applying did, in kubectl's words. The controller's writes of the status are none of ours.
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

fn manifest(args: &VmArgs) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(args.name));
    if let Some(namespace) = &args.cluster.namespace {
        metadata.insert("namespace".into(), json!(namespace));
    }
    if !args.label.is_empty() {
        metadata.insert("labels".into(), args.label.iter().cloned().collect());
    }
    json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": spec(args),
    })
}

fn spec(args: &VmArgs) -> Value {
    let mut spec = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        spec.extend(value.map(|value| (key.to_owned(), value)));
    };
    put(
        "runStrategy",
        Some(json!(format!("{:?}", args.run_strategy))),
    );
    put("imageName", args.image.as_ref().map(|name| json!(name)));
    put("className", args.class.as_ref().map(|name| json!(name)));
    put(
        "hardware",
        args.memory
            .as_ref()
            .map(|memory| json!({"cpus": args.cpus, "memory": Quantity(memory.clone())})),
    );
    put(
        "bootDiskCapacity",
        args.disk_size.as_ref().map(|size| json!(size)),
    );
    put(
        "storageClass",
        args.storage_class.as_ref().map(|name| json!(name)),
    );
    put("volumes", volumes(args));
    put("bootstrap", bootstrap(args));
    Value::Object(spec)
}

fn volumes(args: &VmArgs) -> Option<Value> {
    let root = args.root_claim.iter().map(|claim| {
        json!({"name": "root", "persistentVolumeClaim": {"claimName": claim, "root": true}})
    });
    let more = args
        .volume
        .iter()
        .map(|(name, claim)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
    let all: Vec<_> = root.chain(more).collect();
    (!all.is_empty()).then(|| json!(all))
}

fn bootstrap(args: &VmArgs) -> Option<Value> {
    let mut cloud_init = Map::new();
    if let Some(secret) = &args.user_data {
        let reference = match secret.split_once('/') {
            Some((name, key)) => json!({"name": name, "key": key}),
            None => json!({"name": secret}),
        };
        cloud_init.insert("userData".into(), reference);
    }
    if !args.ssh_key.is_empty() {
        cloud_init.insert("sshKeys".into(), json!(args.ssh_key));
    }
    (!cloud_init.is_empty()).then(|| json!({"cloudInit": cloud_init}))
}

#[cfg(test)]
mod tests;
