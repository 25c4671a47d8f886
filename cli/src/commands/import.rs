//! `import`: a machine from an OVF package, as VMware, VirtualBox and others export it.
//!
//! Invariant: the package is read, checked and planned before the cluster is asked, and the API server
//! accepts the machine before the disk is sent. No object that exists is changed: a machine of that name
//! is an error, and so is an image of that name with another disk.
//! Failure: the package's, the cluster's and the node's. The same command continues after each of them.

mod archive;
mod content;
mod manifest;
mod ovf;
mod package;
mod plan;
mod report;
mod xml;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use crds::{VirtualMachine, VirtualMachineImage};
use kube::api::{Api, PostParams};
use serde_json::Value;

use self::ovf::Description;
use self::package::Package;
use self::plan::{Choice, Plan};
use self::report::Fate;
use super::create::{Run, pair};
use super::follow::{Goal, Target, follow};
use super::image::upload::{Upload, object};
use super::transfer::progress::Progress;
use super::transfer::send::Source;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};
use crate::table::printable;

/// Longest text of a package in a message.
const LONGEST: usize = 64;

/// Package to import, and the machine that it becomes.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Package: an .ova file, or an .ovf file with its disks beside it.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the virtual machine.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Node that gets the disk. The machine runs there.
    #[arg(long, value_name = "NODE", required_unless_present = "dry_run")]
    node: Option<String>,
    /// Name of the VirtualMachineImage that the disk becomes [default: the name of the machine].
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// VirtualMachineClass that defines the size [default: the size in the package].
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// When the machine runs.
    #[arg(long, value_enum, default_value_t = Run::Halted)]
    run_strategy: Run,
    /// Network of the package, and the NetworkAttachmentDefinition in its place; may be repeated. The
    /// first NIC on another network is on the pod network.
    #[arg(long = "network", value_name = "NAME=NETWORK", value_parser = pair)]
    networks: Vec<(String, String)>,
    /// Further disk of the package, by the name of its file or its identifier, and the claim in its place; may be
    /// repeated. The file is not sent.
    #[arg(long = "volume", value_name = "DISK=CLAIM", value_parser = pair)]
    volumes: Vec<(String, String)>,
    /// Keep the MAC addresses of the package.
    #[arg(long)]
    keep_mac: bool,
    /// Disk to boot from, by the name of its file or its identifier [default: the first one].
    #[arg(long, value_name = "DISK")]
    boot_disk: Option<String>,
    /// Configuration of the package [default: its default].
    #[arg(long, value_name = "ID")]
    configuration: Option<String>,
    /// Check the package, print the report and the manifest of the machine, and send nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print each step of the machine until it runs, or is created with --run-strategy Halted or Manual.
    #[arg(short, long, alias = "wait", conflicts_with = "dry_run")]
    watch: bool,
    /// Namespace in which Vmlet is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "vmlet-system")]
    vmlet_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let package = Package::open(&args.file)?;
    let description = Description::parse(&package.descriptor, args.configuration.as_deref())?;
    let mut plan = Plan::new(&description, &args.choice())?;
    about(&package, &mut plan);
    let mut source = disk(&package, &mut plan)?;
    eprint!("{}", plan.report.render());
    let Some(node) = args.node.as_deref().filter(|_| !args.dry_run) else {
        super::print(&super::yaml(&plan.machine)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let cluster = args.cluster.connect_to_follow().await?;
    let upload = Upload {
        name: args.image.as_deref().unwrap_or(&args.name),
        node,
        is_cluster_wide: false,
        vmlet_namespace: &args.vmlet_namespace,
    };
    create(&cluster, args, &plan.machine, Trial::Yes).await?;
    let reference = upload.reference(&cluster, &source)?;
    image(&cluster, upload.name, &reference, Trial::Yes).await?;
    let sent = upload.send(&cluster, &mut source, &reference).await;
    sent.context("failed to upload the disk of the package")?;
    image(&cluster, upload.name, &reference, Trial::No).await?;
    super::print(&format!(
        "virtualmachineimage.vmlet.dev/{} uploaded to node {node}\n",
        upload.name
    ))?;
    let vm = create(&cluster, args, &plan.machine, Trial::No).await?;
    super::print(&format!("virtualmachine.vmlet.dev/{} created\n", args.name))?;
    if args.watch {
        follow(&args.cluster, vec![Target::new(&vm, args.goal())]).await?;
    }
    Ok(ExitCode::SUCCESS)
}

impl ImportArgs {
    fn choice(&self) -> Choice {
        Choice {
            name: self.name.clone(),
            namespace: self.cluster.namespace.clone(),
            image: self.image.clone().unwrap_or_else(|| self.name.clone()),
            class: self.class.clone(),
            node: self.node.clone(),
            run_strategy: format!("{:?}", self.run_strategy),
            networks: self.networks.clone(),
            volumes: self.volumes.clone(),
            keeps_macs: self.keep_mac,
            boot_disk: self.boot_disk.clone(),
        }
    }

    fn goal(&self) -> Goal {
        self.run_strategy.goal()
    }
}

/// What the report says of the package as a whole.
fn about(package: &Package, plan: &mut Plan) {
    if package.manifest.is_none() {
        let text = "there is none: damage and changes of the package are not seen";
        plan.report.add(Fate::Note, "manifest", text);
    }
    if package.is_signed {
        let text = "it is not checked: it says who made the package";
        plan.report.add(Fate::Note, "signature", text);
    }
}

/// Reads the whole disk, as the node gets it.
fn disk(package: &Package, plan: &mut Plan) -> anyhow::Result<Source> {
    let part = package.file(&plan.file.href)?;
    if let Some(size) = plan.file.size.filter(|size| *size != part.size) {
        let name = shown(&part.name);
        let found = part.size;
        bail!(
            "{name:?} has {found} bytes, and {size} by its descriptor: the package is incomplete"
        );
    }
    content::check(&part, plan)?;
    let listed = package.manifest.as_ref();
    let listed = listed.map(|manifest| manifest.checksum(&part.name));
    let listed = listed.transpose()?;
    let mut sum = listed.map(manifest::Checksum::begin);
    let place = part.offset..part.offset + part.size;
    let progress = Progress::new("check");
    let source = Source::read(part.file, &part.path, place, &progress, |bytes| {
        if let Some(sum) = &mut sum {
            sum.update(bytes);
        }
    })?;
    if let Some((listed, sum)) = listed.zip(sum) {
        listed.compare(&part.name, sum)?;
    }
    Ok(source)
}

/// Whether the API server only checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    Yes,
    No,
}

impl Trial {
    fn params(self) -> PostParams {
        PostParams {
            dry_run: self == Self::Yes,
            field_manager: Some("vmletctl".to_owned()),
        }
    }
}

/// Makes the machine; one of that name is an error.
async fn create(
    cluster: &Cluster,
    args: &ImportArgs,
    machine: &Value,
    trial: Trial,
) -> anyhow::Result<VirtualMachine> {
    let machine = serde_json::from_value(machine.clone())
        .context("failed to make the machine of the package")?;
    let made = cluster.machines().create(&trial.params(), &machine).await;
    let about = |error| ClusterError::about(&cluster.namespace, &args.name, error);
    Ok(made.map_err(about)?)
}

/// Makes the image. One of that name is used only if it is that of an earlier attempt.
async fn image(cluster: &Cluster, name: &str, reference: &str, trial: Trial) -> anyhow::Result<()> {
    let image = object("VirtualMachineImage", name, reference);
    let image = serde_json::from_value(image).context("failed to make the image")?;
    let api: Api<VirtualMachineImage> = cluster.api();
    let made = api.create(&trial.params(), &image).await;
    let about = |error| ClusterError::about(&cluster.namespace, name, error);
    match made.map_err(about) {
        Ok(_) => return Ok(()),
        Err(ClusterError::Exists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let found = api.get(name).await.map_err(about)?;
    let oci = found.spec.source.oci.as_ref();
    if oci.is_some_and(|oci| oci.reference == reference) {
        return Ok(());
    }
    bail!("there is an image {name} with another disk already: choose another name by --image");
}

/// A text of a package in a message: short, and without control characters.
fn shown(text: &str) -> String {
    let text: String = text.chars().take(LONGEST).collect();
    printable(&text)
}

#[cfg(test)]
mod tests;
