//! `image upload`: a disk of this computer becomes an image on a node.
//!
//! Invariant: the object is written when the node has the file, and was checked before the file is
//! sent; its source is a name that no server has, with the beginning of the file's checksum, so that
//! another file is another image.
//! Failure: the cluster's and the node's; what the node has received stays for the next call.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crds::{ClusterVirtualMachineImage, VirtualMachineImage};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterArgs, ClusterError};
use crate::commands::transfer::progress::Progress;
use crate::commands::transfer::send::{Receiver, Source};

/// Digits of the checksum in the name of the image on nodes.
const DIGITS: usize = 12;

/// Longest name of an image that kubelet takes.
const LONGEST: usize = 253;

/// File to upload, and the image that it becomes.
#[derive(Debug, Args)]
pub(crate) struct UploadArgs {
    /// Disk to upload: qcow2 or raw, also compressed.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the VirtualMachineImage.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Node that gets the file. Machines with the image must run there.
    #[arg(long, value_name = "NODE")]
    node: String,
    /// Make a ClusterVirtualMachineImage, which all namespaces may use.
    #[arg(long)]
    cluster_wide: bool,
    /// Namespace in which Vmlet is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "vmlet-system")]
    vmlet_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// An uploaded image.
#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Upload<'a> {
    pub(in crate::commands) name: &'a str,
    pub(in crate::commands) node: &'a str,
    pub(in crate::commands) is_cluster_wide: bool,
    pub(in crate::commands) vmlet_namespace: &'a str,
}

pub(super) async fn run(args: &UploadArgs) -> anyhow::Result<ExitCode> {
    let mut source = Source::open(&args.file, &Progress::new("check"))?;
    let cluster = args.cluster.connect_to_follow().await?;
    let upload = Upload {
        name: &args.name,
        node: &args.node,
        is_cluster_wide: args.cluster_wide,
        vmlet_namespace: &args.vmlet_namespace,
    };
    let kind = upload.run(&cluster, &mut source).await?;
    super::super::print(&format!(
        "{kind}/{} uploaded to node {}\n",
        args.name, args.node
    ))?;
    eprintln!(
        "the image is on this node only: machines that use it need the nodeSelector kubernetes.io/hostname: {}",
        args.node
    );
    Ok(ExitCode::SUCCESS)
}

impl Upload<'_> {
    /// Sends the file, and writes the object; returns its kind.
    async fn run(&self, cluster: &Cluster, source: &mut Source) -> anyhow::Result<&'static str> {
        let reference = self.reference(cluster, source)?;
        let params = PatchParams::apply("vmletctl");
        // What the API server refuses is not worth the transfer.
        let trial = params.clone().dry_run();
        self.apply(cluster, &reference, &trial).await?;
        self.send(cluster, source, &reference).await?;
        Ok(self.apply(cluster, &reference, &params).await?)
    }

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
    format!("vmlet.dev/upload.invalid/{place}/{name}:{digits}")
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
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    use super::*;

    #[test]
    fn another_file_has_another_name() {
        let one = reference("team", "web", &"ab".repeat(32));
        assert_eq!(one, "vmlet.dev/upload.invalid/team/web:abababababab");
        assert_ne!(one, reference("team", "web", &"ac".repeat(32)));
    }

    #[tokio::test]
    async fn nothing_is_sent_for_an_object_that_the_api_server_refuses() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": "Invalid", "message": "it is immutable", "code": 422});
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let answer = head + &body;
            stream.write_all(answer.as_bytes()).await.unwrap();
            // What else the client has sent; it makes no second connection.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            line
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("d");
        std::fs::write(&file, "a disk").unwrap();
        let kubeconfig = dir.path().join("config");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}]});
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let args = UploadArgs {
            file,
            name: "web".to_owned(),
            node: "n1".to_owned(),
            cluster_wide: false,
            vmlet_namespace: "vmlet-system".to_owned(),
            cluster: ClusterArgs {
                kubeconfig: Some(kubeconfig),
                ..ClusterArgs::default()
            },
        };
        let refused = format!("{:#}", run(&args).await.unwrap_err());
        assert!(refused.contains("it is immutable"), "{refused}");
        let line = serving.await.unwrap();
        assert!(line.starts_with("PATCH "), "{line}");
        assert!(line.contains("dryRun=All"), "{line}");
    }
}
