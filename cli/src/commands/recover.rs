//! `recover`: makes the machines again whose disks a node has and that the cluster does not know.
//!
//! ```text
//! node ─ disks, manifests ─► which machines does the cluster lack? ─► objects that take their disks over
//! ```
//!
//! Invariant: nothing on the node is changed, and no object that exists; a machine is made again with its
//! own namespace and name only. What a node says is checked by the API server as any object is, and
//! gives no more rights than the user's.
//! Failure: a line for each machine that was not made again, with the reason, and exit code 1.

mod object;
mod offers;
mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use crds::backup::DiskRecord;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::ApiResource;

use self::offers::Offer;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};
use crate::table;

/// Node whose disks to look at, and which machines to make again.
#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// Node that has the disks.
    #[arg(long, value_name = "NODE")]
    node: String,
    /// Names of virtual machines, or NAMESPACE/NAME for those of another namespace; without any, -n or
    /// --all is needed, unless with --dry-run.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// All machines that the cluster lacks, of all namespaces.
    #[arg(long, conflicts_with_all = ["names", "namespace"])]
    all: bool,
    /// Only the disk with this UID, where a node has several of one machine.
    #[arg(long, value_name = "UID", requires = "names")]
    disk: Option<String>,
    /// Only show what would be made, and let the cluster check it.
    #[arg(long)]
    dry_run: bool,
    /// Print the whole objects, and the table to standard error.
    #[arg(short, long, value_enum, requires = "dry_run")]
    output: Option<Output>,
    /// Read the disks of the node from this file, which `vmletctl node manifests` wrote there, in place of
    /// asking the node; - is standard input.
    #[arg(long, value_name = "FILE")]
    disks: Option<PathBuf>,
    /// Namespace in which Vmlet is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "vmlet-system")]
    vmlet_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// How objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Yaml,
}

/// What became of a disk.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The machine has it.
    Present,
    Done(String),
    Refused(String),
}

pub(crate) async fn run(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        is_bounded(args),
        "name the machines, a namespace with -n, or --all: a machine that is recovered gives node {} the \
         Secrets that its manifest names; --dry-run shows them",
        args.node
    );
    let cluster = args.cluster.connect().await?;
    let disks = match &args.disks {
        Some(file) => offers::read_file(file).await?,
        None => offers::read(&cluster, &args.vmlet_namespace, &args.node).await?,
    };
    let mut offers: Vec<_> = disks.into_iter().map(Offer::new).collect();
    offers.sort_by(|a, b| (a.name(), a.uid()).cmp(&(b.name(), b.uid())));
    let names = full_names(&args.names, &cluster.namespace);
    offers.retain(|offer| is_chosen(offer, args, &names));
    let missing = missing(&names, &offers);
    let counts = counts(&offers);
    let mut rows = Vec::new();
    let mut has_failed = false;
    for offer in &offers {
        let count = counts.get(offer.name()).copied().unwrap_or_default();
        let outcome = outcome(&cluster, offer, count, args).await;
        if args.output.is_some() && matches!(outcome, Outcome::Done(_)) {
            super::print(&document(offer, args)?)?;
        }
        has_failed |= matches!(outcome, Outcome::Refused(_));
        let text = match outcome {
            Outcome::Present if args.names.is_empty() => continue,
            Outcome::Present => "has its disk".to_owned(),
            Outcome::Done(text) | Outcome::Refused(text) => text,
        };
        let uses = offer.manifest().map(uses::list).unwrap_or_default();
        rows.push([offer.name().to_owned(), offer.uid().to_owned(), uses, text]);
    }
    for name in missing {
        has_failed = true;
        let uid = args.disk.as_ref();
        let uid = uid.map(|uid| format!(" and the UID {uid}"));
        let text = format!(
            "no disk of node {} has this name{}",
            args.node,
            uid.unwrap_or_default()
        );
        rows.push([name.to_owned(), String::new(), String::new(), text]);
    }
    if rows.is_empty() {
        eprintln!(
            "the cluster knows the machine of every disk of node {}",
            args.node
        );
        return Ok(ExitCode::SUCCESS);
    }
    let table = table::render(["MACHINE", "DISK", "USES", "RESULT"], &rows);
    match args.output {
        None => super::print(&table)?,
        Some(Output::Yaml) => eprint!("{table}"),
    }
    Ok(if has_failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Whether the user has said which machines: a node chooses names and manifests of its disks.
fn is_bounded(args: &RecoverArgs) -> bool {
    args.dry_run || args.all || !args.names.is_empty() || args.cluster.namespace.is_some()
}

/// The object that would be made.
fn document(offer: &Offer, args: &RecoverArgs) -> anyhow::Result<String> {
    let Ok(manifest) = offer.manifest() else {
        return Ok(String::new());
    };
    let object = object::of_manifest(manifest, &args.node, offer.has_saved_memory());
    Ok(format!("---\n{}", super::yaml(&object)?))
}

/// A name alone is one of the namespace in which the command works: a node may offer any.
fn full_names(names: &[String], namespace: &str) -> BTreeSet<String> {
    let full = |name: &String| {
        if name.contains('/') {
            name.clone()
        } else {
            format!("{namespace}/{name}")
        }
    };
    names.iter().map(full).collect()
}

fn is_chosen(offer: &Offer, args: &RecoverArgs, names: &BTreeSet<String>) -> bool {
    let namespace = args.cluster.namespace.as_deref();
    let is_there = namespace.is_none_or(|namespace| offer.namespace() == namespace);
    let is_named = names.is_empty() || names.contains(offer.name());
    let is_disk = args.disk.as_deref().is_none_or(|uid| offer.uid() == uid);
    is_there && is_named && is_disk
}

/// The names that no disk has.
fn missing<'a>(names: &'a BTreeSet<String>, offers: &[Offer]) -> BTreeSet<&'a str> {
    let has_none = |name: &&str| !offers.iter().any(|offer| offer.name() == *name);
    names.iter().map(String::as_str).filter(has_none).collect()
}

/// How many disks with data the node has of each machine.
fn counts(offers: &[Offer]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for offer in offers.iter().filter(|offer| offer.may_have_data()) {
        *counts.entry(offer.name()).or_default() += 1;
    }
    counts
}

/// `count`: so many disks of the machine are on the node.
async fn outcome(cluster: &Cluster, offer: &Offer, count: usize, args: &RecoverArgs) -> Outcome {
    if !offer.has_valid_name() {
        return Outcome::Refused("no machine can have this name".to_owned());
    }
    let refused = |error| {
        let error = ClusterError::about(offer.namespace(), offer.name(), error);
        Outcome::Refused(format!("not recovered: {error}"))
    };
    let kind = ApiResource::erase::<crds::VirtualMachine>(&());
    let machines: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), offer.namespace(), &kind);
    match machines.get_opt(offer.machine()).await {
        Ok(Some(found)) => return taken(&found, offer, &args.node),
        Ok(None) => {}
        Err(error) => return refused(error),
    }
    let manifest = match offer.manifest() {
        Ok(manifest) => manifest,
        Err(reason) => return Outcome::Refused(reason),
    };
    if let Some(refused) = ambiguous(count) {
        return refused;
    }
    let object = object::of_manifest(manifest, &args.node, offer.has_saved_memory());
    let params = PostParams {
        dry_run: args.dry_run,
        ..PostParams::default()
    };
    match machines.create(&params, &object).await {
        Ok(_) => Outcome::Done(success(args, offer).to_owned()),
        Err(error) => refused(error),
    }
}

/// Which of several disks has the newest data is not known.
fn ambiguous(count: usize) -> Option<Outcome> {
    let text = format!("the node has {count} disks of this machine: choose one with --disk UID");
    (count > 1).then_some(Outcome::Refused(text))
}

/// What there is to say of a disk whose machine's name is taken.
fn taken(found: &DynamicObject, offer: &Offer, node: &str) -> Outcome {
    let status = &found.data["status"];
    let adopted = status["diskUID"].as_str();
    let own = found.metadata.uid.as_deref();
    let recorded = status["nodeName"].as_str();
    if [own, adopted].contains(&Some(offer.uid())) && recorded == Some(node) {
        return Outcome::Present;
    }
    if found.annotations().contains_key(crds::names::ADOPT_DISK) {
        return adopting(found, offer, node);
    }
    // After a return to an old backup of the cluster a machine of that UID may have begun again.
    if own == Some(offer.uid()) {
        let none = || "no disk yet".to_owned();
        let where_to = recorded.map_or_else(none, |other| format!("its disk on node {other}"));
        return Outcome::Refused(format!(
            "the machine has {where_to}: delete it first, if this disk is to be recovered"
        ));
    }
    Outcome::Refused(
        "another machine has this name: delete it first, if this disk is to be recovered"
            .to_owned(),
    )
}

/// What there is to say of a disk whose machine's name has one that is to take a disk over.
fn adopting(found: &DynamicObject, offer: &Offer, node: &str) -> Outcome {
    let record = found.annotations().get(crds::names::DISK_RECORD);
    match record.and_then(|text| DiskRecord::from_json(text).ok()) {
        Some(record) if record.disk == offer.uid() && record.node == node => {
            Outcome::Done("takes its disk over".to_owned())
        }
        Some(record) => Outcome::Refused(format!(
            "a machine of this name takes over disk {} of node {}",
            record.disk, record.node
        )),
        None => Outcome::Refused(
            "a machine of this name is to take over a disk, and has no valid record of one"
                .to_owned(),
        ),
    }
}

/// What there is to say of a machine that the cluster has taken.
const fn success(args: &RecoverArgs, offer: &Offer) -> &'static str {
    if args.dry_run {
        "would be recovered (dry run)"
    } else if offer.has_saved_memory() {
        "recovered, paused: it was suspended; remove the annotation vmlet.dev/paused to resume it"
    } else {
        "recovered"
    }
}

#[cfg(test)]
mod tests;
