//! `create vm`: writes a manifest, and applies it when asked to.
//!
//! Invariant: what is printed is what `--apply` would send.
//! Failure: a combination that the schema forbids is refused by the server, with its sentence.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::cluster::{ClusterArgs, ClusterError};

/// What to create.
#[derive(Debug, Subcommand)]
pub(crate) enum CreateArgs {
    /// A virtual machine.
    Vm(Box<VmArgs>),
}

/// A machine in options.
#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// Name of the machine.
    name: String,
    /// The VirtualMachineImage or ClusterVirtualMachineImage of the root disk.
    #[arg(long, value_name = "IMAGE", required_unless_present = "root_claim")]
    image: Option<String>,
    /// The claim of the root disk, instead of an image.
    #[arg(long, value_name = "CLAIM", conflicts_with = "image")]
    root_claim: Option<String>,
    /// The VirtualMachineClass that gives the size.
    #[arg(long, value_name = "CLASS", required_unless_present = "memory", conflicts_with_all = ["cpus", "memory"])]
    class: Option<String>,
    /// Virtual CPUs, instead of a class.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,
    /// Guest memory, such as 2Gi, instead of a class.
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
    /// Secret with cloud-init user data, and its key if that is not user-data.
    #[arg(long, value_name = "SECRET[/KEY]")]
    user_data: Option<String>,
    /// SSH public key for the default user; may be repeated.
    #[arg(long, value_name = "KEY")]
    ssh_key: Vec<String>,
    /// A label of the machine; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Create it, or change what was created so before; otherwise its YAML is printed.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Run {
    /// Always.
    Always,
    /// Until it powers itself off.
    RerunOnFailure,
    /// When it is started by hand.
    Manual,
    /// Not now.
    Halted,
    /// One time.
    Once,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("a name and a value with = between are needed")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let CreateArgs::Vm(args) = args;
    let mut object = manifest(args);
    if !args.apply {
        super::print(&serde_saphyr::to_string(&object)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = args.cluster.connect().await?;
    object["metadata"]["namespace"] = json!(cluster.namespace);
    let params = PatchParams::apply("vmletctl");
    let about = |error| ClusterError::about(&cluster.namespace, &args.name, error);
    let api = cluster.machines();
    api.patch(&args.name, &params, &Patch::Apply(&object))
        .await
        .map_err(about)?;
    super::print(&format!("virtualmachine.vmlet.dev/{} applied\n", args.name))?;
    Ok(ExitCode::SUCCESS)
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
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn yaml(line: &str) -> String {
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Command::Create(CreateArgs::Vm(args)) = args.command else {
            panic!("not create vm");
        };
        let object = manifest(&args);
        // What is generated is what the kind has.
        let _: crds::VirtualMachine = serde_json::from_value(object.clone()).unwrap();
        serde_saphyr::to_string(&object).unwrap()
    }

    #[test]
    fn a_plain_machine() {
        insta::assert_snapshot!(yaml("vmletctl create vm web --image debian --class small"));
    }

    #[test]
    fn a_machine_with_everything() {
        insta::assert_snapshot!(yaml(
            "vmletctl create vm web -n team-a --root-claim disk --cpus 2 --memory 2Gi --run-strategy RerunOnFailure \
             --disk-size 20Gi --storage-class fast --volume data=claim --user-data seed/config --ssh-key k1 --label a=b"
        ));
    }

    #[test]
    fn an_image_and_a_size_are_needed() {
        for line in [
            "vmletctl create vm web --class small",
            "vmletctl create vm web --image debian",
            "vmletctl create vm web --image debian --class small --memory 1Gi",
            "vmletctl create vm web --image debian --root-claim x --class small",
            "vmletctl create vm web --image debian --class small --run-strategy Sometimes",
        ] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
