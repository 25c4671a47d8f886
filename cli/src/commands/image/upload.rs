//! `image upload`: a disk of this computer becomes an image on a node.
//!
//! Invariant: the object is written when the node has the file, and was checked before the file is
//! sent; its source is a name that no server has, with the beginning of the file's checksum, so that
//! another file is another image.
//! Failure: the cluster's and the node's; what the node has received stays for the next call.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use crds::{ClusterVirtualMachineImage, VirtualMachineImage};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncWriteExt as _, BufReader};

use crate::cluster::node_pod::NodePod;
use crate::cluster::{Cluster, ClusterArgs, ClusterError};
use crate::commands::transfer::line::Line;
use crate::commands::transfer::progress::Progress;
use crate::commands::transfer::{Attempts, failure, is_passing};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

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

/// A file that does not change while it is uploaded.
struct Source {
    file: File,
    size: u64,
    sha256: String,
}

/// An attempt that has failed.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error("failed to read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to send to the node")]
    Send(#[source] io::Error),
}

pub(super) async fn run(args: &UploadArgs) -> anyhow::Result<ExitCode> {
    let mut source = Source::open(&args.file)?;
    let cluster = args.cluster.connect_to_follow().await?;
    // No namespace can have the name of the first one.
    let place = if args.cluster_wide {
        "all_namespaces"
    } else {
        cluster.namespace.as_str()
    };
    let reference = reference(place, &args.name, &source.sha256);
    if reference.len() > LONGEST {
        bail!(
            "the names of namespace and image are too long for an uploaded image: choose a shorter --name"
        );
    }
    let params = PatchParams::apply("vmletctl");
    // What the API server refuses is not worth the transfer.
    let trial = params.clone().dry_run();
    apply(&cluster, args, &reference, &trial).await?;
    send(&cluster, args, &reference, &mut source).await?;
    let kind = apply(&cluster, args, &reference, &params).await?;
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

/// A name that no server has.
fn reference(place: &str, name: &str, sha256: &str) -> String {
    let digits = sha256.get(..DIGITS).unwrap_or(sha256);
    format!("vmlet.dev/upload.invalid/{place}/{name}:{digits}")
}

/// Sends the file, in as many attempts as it needs.
async fn send(
    cluster: &Cluster,
    args: &UploadArgs,
    reference: &str,
    source: &mut Source,
) -> anyhow::Result<()> {
    let progress = Progress::new("upload");
    let mut attempts = Attempts::default();
    let mut most = 0;
    loop {
        let mut reached = 0;
        let sent = attempt(cluster, args, reference, source, &progress, &mut reached).await;
        let Err(error) = sent else {
            return Ok(());
        };
        if !is_passing(&error) {
            return Err(error);
        }
        most = most.max(reached);
        attempts.again(error, most, &progress).await?;
    }
}

/// `reached` becomes the number of bytes that the node had at the beginning.
async fn attempt(
    cluster: &Cluster,
    args: &UploadArgs,
    reference: &str,
    source: &mut Source,
    progress: &Progress,
    reached: &mut u64,
) -> anyhow::Result<()> {
    let client = cluster.client.clone();
    let pod = NodePod::find(client, &args.vmlet_namespace, &args.node).await?;
    let mut program = pod.start(source.command(reference)).await?;
    let mut output = BufReader::new(&mut program.output);
    let mut line = async || Line::read(&mut output).await;
    let offset = loop {
        match line().await {
            Ok(Some(Line::Begin { offset, .. })) => break Some(offset),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break None,
        }
    };
    let mut is_complete = false;
    if let Some(offset) = offset {
        *reached = offset;
        progress.begin(source.size, offset);
        let sending = source.send(offset, &mut program.input, progress);
        let answered = async {
            loop {
                match line().await {
                    Ok(Some(Line::End { .. })) => return true,
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return false,
                }
            }
        };
        tokio::pin!(sending, answered);
        let mut is_sent = false;
        is_complete = loop {
            tokio::select! {
                complete = &mut answered => break complete,
                sent = &mut sending, if !is_sent => match sent {
                    Ok(()) => is_sent = true,
                    Err(error @ UploadError::File { .. }) => return Err(error.into()),
                    // The program on the node says why.
                    Err(UploadError::Send(_)) => is_sent = true,
                },
            }
        };
    }
    if is_complete {
        return Ok(());
    }
    let ended = failure(program, &args.node).await;
    Err(ended.unwrap_or_else(|| anyhow!("the program on node {} ended early", args.node)))
}

impl Source {
    /// Reads all of the file for its checksum.
    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        if !file.metadata().is_ok_and(|is| is.is_file()) {
            bail!("{} is no file", path.display());
        }
        let mut sum = Sha256::new();
        let mut size = 0;
        let mut piece = vec![0; PIECE];
        loop {
            match file
                .read(&mut piece)
                .with_context(|| format!("read {}", path.display()))?
            {
                0 => break,
                count => {
                    sum.update(&piece[..count]);
                    size += count as u64;
                }
            }
        }
        let sha256 = sum
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Self { file, size, sha256 })
    }

    /// The program on the node that receives the file.
    fn command(&self, reference: &str) -> Vec<String> {
        let mut command: Vec<_> = ["vmletctl", "node", "upload-image", reference]
            .map(str::to_owned)
            .into();
        command.push(format!("--size={}", self.size));
        command.push(format!("--sha256={}", self.sha256));
        command
    }

    async fn send(
        &mut self,
        offset: u64,
        to: &mut (impl tokio::io::AsyncWrite + Unpin),
        progress: &Progress,
    ) -> Result<(), UploadError> {
        let failed = |source| UploadError::File {
            path: PathBuf::from("the file"),
            source,
        };
        self.file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        let mut piece = vec![0; PIECE];
        let mut sent = offset;
        while sent < self.size {
            let count = match self.file.read(&mut piece).map_err(failed)? {
                0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                count => count,
            };
            to.write_all(&piece[..count])
                .await
                .map_err(UploadError::Send)?;
            sent += count as u64;
            progress.received(sent);
        }
        to.flush().await.map_err(UploadError::Send)
    }
}

/// Writes the object; returns its kind.
async fn apply(
    cluster: &Cluster,
    args: &UploadArgs,
    reference: &str,
    params: &PatchParams,
) -> anyhow::Result<&'static str> {
    let about = |error| ClusterError::about(&cluster.namespace, &args.name, error);
    if args.cluster_wide {
        let object = object("ClusterVirtualMachineImage", &args.name, reference);
        let api: Api<ClusterVirtualMachineImage> = Api::all(cluster.client.clone());
        let patch = Patch::Apply(&object);
        api.patch(&args.name, params, &patch).await.map_err(about)?;
        return Ok("clustervirtualmachineimage.vmlet.dev");
    }
    let object = object("VirtualMachineImage", &args.name, reference);
    let api: Api<VirtualMachineImage> = cluster.api();
    let patch = Patch::Apply(&object);
    api.patch(&args.name, params, &patch).await.map_err(about)?;
    Ok("virtualmachineimage.vmlet.dev")
}

fn object(kind: &str, name: &str, reference: &str) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"source": {"oci": {"reference": reference}}},
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncBufReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_file_is_sent_from_where_the_node_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * PIECE + 7).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.size, bytes.len() as u64);
        for offset in [0, 5, PIECE, bytes.len()] {
            let mut sent = Vec::new();
            let progress = Progress::hidden();
            source
                .send(offset as u64, &mut sent, &progress)
                .await
                .unwrap();
            assert_eq!(sent, bytes[offset..]);
        }
        assert!(Source::open(dir.path()).is_err());
        std::fs::write(&path, "shorter").unwrap();
        let cut = source.send(5, &mut Vec::new(), &Progress::hidden()).await;
        assert!(matches!(cut, Err(UploadError::File { .. })));
    }

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
