//! `image upload`: a disk of this computer becomes an image on nodes.
//!
//! Invariant: the object is written when the first node has the file, and was checked before the file is
//! sent; its source is a name that no server has, with the beginning of the file's checksum, so that
//! another file is another image. A node that fails keeps no other node from the file.
//! Failure: the cluster's and the nodes'; what a node has received stays for the next call.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{ArgGroup, Args};
use crds::{ClusterVirtualMachineImage, VirtualMachineImage};
use kube::api::{Api, Patch, PatchParams};
use podspec::UPLOADED_IMAGE;
use serde_json::{Value, json};

use crate::cluster::node_pod::NodePod;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};
use crate::commands::transfer::progress::Progress;
use crate::commands::transfer::send::{Receiver, Source, is_local};

/// Digits of the checksum in the name of the image on nodes.
const DIGITS: usize = 12;

/// Longest name of an image that kubelet takes.
const LONGEST: usize = 253;

/// File to upload, and the image that it becomes.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("nodes").required(true).args(["node", "all_nodes"])))]
pub(crate) struct UploadArgs {
    /// Disk to upload: qcow2 or raw, also compressed.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the VirtualMachineImage.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Node that gets the file; may be repeated. Machines with the image must run on one of them.
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
    /// Send the file to each node with Vmlet, one after the other.
    #[arg(long)]
    all_nodes: bool,
    /// Make a ClusterVirtualMachineImage, which all namespaces may use.
    #[arg(long)]
    cluster_wide: bool,
    /// Namespace in which Vmlet is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "vmlet-system")]
    vmlet_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// An image that is uploaded to a node.
#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Upload<'a> {
    pub(in crate::commands) name: &'a str,
    pub(in crate::commands) node: &'a str,
    pub(in crate::commands) is_cluster_wide: bool,
    pub(in crate::commands) vmlet_namespace: &'a str,
}

/// Nodes that did not get the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to upload to {} of {all} nodes: {}; the same command continues, and sends nothing to nodes that have the image",
    .failed.len(), .failed.join(", ")
)]
struct NodesError {
    failed: Vec<String>,
    all: usize,
}

pub(super) async fn run(args: &UploadArgs) -> anyhow::Result<ExitCode> {
    let mut source = Source::open(&args.file, &Progress::new("check"))?;
    let cluster = args.cluster.connect_to_follow().await?;
    let nodes = args.nodes(&cluster).await?;
    send_to_all(args, &cluster, &mut source, &nodes).await?;
    eprintln!("{}", note(&nodes));
    Ok(ExitCode::SUCCESS)
}

/// Sends the file to each node, and writes the object once one has it.
async fn send_to_all(
    args: &UploadArgs,
    cluster: &Cluster,
    source: &mut Source,
    nodes: &[String],
) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    let mut kind = None;
    for (place, node) in nodes.iter().enumerate() {
        let upload = args.upload(node);
        let reference = upload.reference(cluster, source)?;
        let params = PatchParams::apply("vmletctl");
        if place == 0 {
            // What the API server refuses is not worth the transfer.
            let trial = params.clone().dry_run();
            upload.apply(cluster, &reference, &trial).await?;
        }
        if nodes.len() > 1 {
            eprintln!("node {node} ({} of {})", place + 1, nodes.len());
        }
        match upload.send(cluster, source, &reference).await {
            Ok(()) => {}
            Err(error) if nodes.len() == 1 || is_local(&error) => return Err(error),
            Err(error) => {
                eprintln!("error: {error:#}");
                failed.push(node.clone());
                continue;
            }
        }
        let written = match kind {
            Some(written) => written,
            None => upload.apply(cluster, &reference, &params).await?,
        };
        kind = Some(written);
        let text = format!("{written}/{} uploaded to node {node}\n", args.name);
        super::super::print(&text)?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    let all = nodes.len();
    Err(NodesError { failed, all }.into())
}

/// What a user is to know of the machines with the image.
fn note(nodes: &[String]) -> String {
    match nodes {
        [node] => format!(
            "the image is on this node only: machines that use it need the nodeSelector kubernetes.io/hostname: {node}"
        ),
        nodes => format!(
            "the image is on these {} nodes only: machines that use it must run on one of them",
            nodes.len()
        ),
    }
}

impl UploadArgs {
    /// The nodes that get the file, each once; those that cannot be reached now are the last.
    async fn nodes(&self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let mut nodes = self.node.clone();
        if self.all_nodes || nodes.len() > 1 {
            let known = NodePod::nodes(cluster.client.clone(), &self.vmlet_namespace).await?;
            if self.all_nodes {
                nodes = known.keys().cloned().collect();
            }
            nodes.sort();
            nodes.dedup();
            nodes.sort_by_key(|node| known.get(node) != Some(&true));
        }
        if nodes.is_empty() {
            bail!(
                "no node has a pod vmlet-node in namespace {}: name the namespace of Vmlet by --vmlet-namespace",
                self.vmlet_namespace
            );
        }
        Ok(nodes)
    }

    fn upload<'a>(&'a self, node: &'a str) -> Upload<'a> {
        Upload {
            name: &self.name,
            node,
            is_cluster_wide: self.cluster_wide,
            vmlet_namespace: &self.vmlet_namespace,
        }
    }
}

impl Upload<'_> {
    /// Sends the file.
    pub(in crate::commands) async fn send(
        &self,
        cluster: &Cluster,
        source: &mut Source,
        reference: &str,
    ) -> anyhow::Result<()> {
        let to = Receiver {
            vmlet_namespace: self.vmlet_namespace,
            node: self.node,
            reference,
        };
        source.send(cluster, to).await
    }

    /// The name of the image on nodes.
    pub(in crate::commands) fn reference(
        &self,
        cluster: &Cluster,
        source: &Source,
    ) -> anyhow::Result<String> {
        // No namespace can have the name of the first one.
        let place = if self.is_cluster_wide {
            "all_namespaces"
        } else {
            cluster.namespace.as_str()
        };
        let reference = reference(place, self.name, &source.sha256);
        if reference.len() > LONGEST {
            bail!(
                "the names of namespace and image are too long for an uploaded image: choose a shorter name"
            );
        }
        Ok(reference)
    }

    /// Writes the object; returns its kind.
    async fn apply(
        &self,
        cluster: &Cluster,
        reference: &str,
        params: &PatchParams,
    ) -> Result<&'static str, ClusterError> {
        let about = |error| ClusterError::about(&cluster.namespace, self.name, error);
        if self.is_cluster_wide {
            let object = object("ClusterVirtualMachineImage", self.name, reference);
            let api: Api<ClusterVirtualMachineImage> = Api::all(cluster.client.clone());
            let patch = Patch::Apply(&object);
            api.patch(self.name, params, &patch).await.map_err(about)?;
            return Ok("clustervirtualmachineimage.vmlet.dev");
        }
        let object = object("VirtualMachineImage", self.name, reference);
        let api: Api<VirtualMachineImage> = cluster.api();
        let patch = Patch::Apply(&object);
        api.patch(self.name, params, &patch).await.map_err(about)?;
        Ok("virtualmachineimage.vmlet.dev")
    }
}

/// A name that no server has.
fn reference(place: &str, name: &str, sha256: &str) -> String {
    let digits = sha256.get(..DIGITS).unwrap_or(sha256);
    format!("{UPLOADED_IMAGE}{place}/{name}:{digits}")
}

pub(in crate::commands) fn object(kind: &str, name: &str, reference: &str) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"source": {"oci": {"reference": reference}}},
    })
}

#[cfg(test)]
mod tests;
