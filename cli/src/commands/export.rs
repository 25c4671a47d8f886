//! `export`: the disk of a machine as a file here, through the API server.
//!
//! Invariant: a connection that breaks is made again for as long as bytes arrive; the destination
//! says what is there, and the node whether it belongs to the disk. The node keeps its copy until the
//! file here has its name.
//! Failure: the cluster's and the node's, with what the user can do; what was received stays for the
//! next call.

mod destination;
mod receive;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crds::vm::PrintableStatus;
use indicatif::HumanBytes;
use tokio::io::{AsyncWriteExt as _, BufReader};

use self::destination::Destination;
use self::receive::{ReceiveError, receive};
use crate::cluster::node_pod::{NodePod, Program};
use crate::cluster::{Cluster, ClusterArgs, Found, Names};
use crate::commands::transfer::line::COMPLETE;
use crate::commands::transfer::progress::Progress;
use crate::commands::transfer::{Attempts, failure, is_passing};

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// Machine whose disk to export, and where to.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Name of the virtual machine. It must be stopped.
    #[arg(value_name = "NAME")]
    name: String,
    /// File to write, as qcow2; - is standard output. Until it is complete it has the suffix .part.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
    /// Namespace in which Vmlet is installed.
    #[arg(long, value_name = "NAMESPACE", default_value = "vmlet-system")]
    vmlet_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A disk, and the node that has it.
#[derive(Debug, PartialEq, Eq)]
struct Disk {
    node: String,
    uid: String,
}

pub(crate) async fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let mut to = Destination::open(&args.output, args.force)?;
    let cluster = args.cluster.connect().await?;
    let name = Names::machine(&args.name);
    let disk = disk(name, &cluster.find(name).await?)?;
    // A node that makes the file may need longer for an answer than the API server.
    let cluster = args.cluster.connect_to_follow().await?;
    let mut program = fetch(&cluster, &args.vmlet_namespace, &disk, &mut to).await?;
    let bytes = HumanBytes(to.received());
    let checksum = to.checksum();
    to.finish()?;
    // The file is here: a node that does not learn of it removes its copy later.
    let _ = program.input.write_all(COMPLETE.as_bytes()).await;
    let _ = program.end().await;
    let place = if args.output.as_os_str() == "-" {
        "standard output".to_owned()
    } else {
        args.output.display().to_string()
    };
    eprintln!("exported {name} to {place}: {bytes}, sha256 {checksum}");
    Ok(ExitCode::SUCCESS)
}

/// Where the disk of a machine is, if it can be exported.
fn disk(name: &str, found: &Found) -> anyhow::Result<Disk> {
    let status = found.vm.status.clone().unwrap_or_default();
    let is_on_claim = status.unique_id.is_some_and(|id| id.starts_with("pvc/"));
    if is_on_claim {
        bail!(
            "the root disk of {name} is a claim, and not a file of a node: copy the claim with the means of its storage"
        );
    }
    if status.printable_status == Some(PrintableStatus::Suspended) {
        bail!(
            "{name} is suspended, and its disk is incomplete without its memory: `vmletctl resume {name}`, then \
             `vmletctl stop {name}`"
        );
    }
    if found.pod.is_some() {
        bail!(
            "{name} runs, and its disk changes while it does: `vmletctl stop {name}`, and export it when `vmletctl status \
             {name}` says Stopped"
        );
    }
    let uid = status.disk_uid.or_else(|| found.vm.metadata.uid.clone());
    match status.node_name.zip(uid) {
        Some((node, uid)) => Ok(Disk { node, uid }),
        None => bail!("{name} has no disk yet: `vmletctl status {name}` says what it waits for"),
    }
}

/// Receives the disk, in as many attempts as it needs; returns the program that waits for the end.
async fn fetch(
    cluster: &Cluster,
    namespace: &str,
    disk: &Disk,
    to: &mut Destination,
) -> anyhow::Result<Program> {
    let progress = Progress::new("export");
    let mut attempts = Attempts::default();
    loop {
        let error = match attempt(cluster, namespace, disk, to, &progress).await {
            Ok(program) => return Ok(program),
            Err(error) => error,
        };
        let again = error
            .chain()
            .any(|e| e.downcast_ref().is_some_and(ReceiveError::is_passing));
        if !(again || is_passing(&error)) {
            return Err(error);
        }
        attempts.again(error, to.received(), &progress).await?;
    }
}

async fn attempt(
    cluster: &Cluster,
    namespace: &str,
    disk: &Disk,
    to: &mut Destination,
    progress: &Progress,
) -> anyhow::Result<Program> {
    let pod = NodePod::find(cluster.client.clone(), namespace, &disk.node).await?;
    let mut program = pod.start(command(disk, to)).await?;
    let mut output = BufReader::with_capacity(BUFFER, &mut program.output);
    let received = receive(&mut output, to, progress).await;
    match received {
        Ok(()) => Ok(program),
        Err(error @ (ReceiveError::Early | ReceiveError::Read(_))) => {
            Err(failure(program, &disk.node).await.unwrap_or(error.into()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The program on the node that sends what is missing.
fn command(disk: &Disk, to: &Destination) -> Vec<String> {
    let mut command: Vec<_> = ["vmletctl", "node", "export-disk", &disk.uid]
        .map(str::to_owned)
        .into();
    if to.received() > 0 {
        let received = format!("--received={}", to.received());
        command.extend([received, format!("--received-sha256={}", to.checksum())]);
    }
    command
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(status: &serde_json::Value, pod: Option<()>) -> Found {
        let vm = serde_json::from_value(json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "uid": "u1"}, "spec": {"running": true}, "status": status,
        }));
        Found {
            vm: vm.unwrap(),
            pod: pod.map(|()| k8s_openapi::api::core::v1::Pod::default()),
        }
    }

    #[test]
    fn the_disk_of_a_stopped_machine_is_on_its_node() {
        let disk_of = |status, pod| disk("web", &found(&status, pod));
        let here = disk_of(json!({"nodeName": "n1"}), None).unwrap();
        assert_eq!((&*here.node, &*here.uid), ("n1", "u1"));
        let adopted = disk_of(json!({"nodeName": "n1", "diskUID": "u2"}), None).unwrap();
        assert_eq!(adopted.uid, "u2");
        for (status, pod, words) in [
            (json!({}), None, "has no disk yet"),
            (json!({"nodeName": "n1"}), Some(()), "vmletctl stop web"),
            (
                json!({"printableStatus": "Suspended", "nodeName": "n1"}),
                Some(()),
                "is suspended",
            ),
            (
                json!({"uniqueID": "pvc/x", "nodeName": "n1"}),
                None,
                "is a claim",
            ),
        ] {
            let refused = disk_of(status, pod).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
