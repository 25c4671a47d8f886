//! `export`: the disk of a machine, of a snapshot or in a backup, as a file here, through the API server.
//!
//! Invariant: the file here has its name before the command requests that the node removes its copy.
//! Failure: the cluster's and the node's, with what the user can do; what was received stays for the
//! next call.

pub(super) mod destination;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::HumanBytes;

use self::destination::Destination;
use crate::cluster::ClusterArgs;
use crate::commands::transfer::disk::DiskArgs;
use crate::commands::transfer::fetch::Fetch;
use crate::commands::transfer::progress::Progress;
use crate::commands::transfer::receive::Target as _;

/// Disk to export, and where to.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    disk: DiskArgs,
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

pub(crate) async fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let mut to = Destination::open(&args.output, args.force)?;
    let cluster = args.cluster.connect().await?;
    let disk = args.disk.find(&cluster, &args.vmlet_namespace).await?;
    // A node that makes the file may need longer for an answer than the API server.
    let cluster = args.cluster.connect_to_follow().await?;
    let progress = Progress::new("export");
    let fetch = Fetch {
        cluster: &cluster,
        namespace: &args.vmlet_namespace,
        disk: &disk,
        progress: &progress,
    };
    let fetched = fetch.run(&mut to).await;
    disk.leave(&cluster).await;
    let fetched = fetched?;
    drop(progress);
    let bytes = HumanBytes(to.received());
    let checksum = to.checksum();
    to.finish()?;
    fetched.complete().await;
    let place = if args.output.as_os_str() == "-" {
        "standard output".to_owned()
    } else {
        args.output.display().to_string()
    };
    let name = &args.disk;
    eprintln!("exported {name} to {place}: {bytes}, sha256 {checksum}");
    Ok(ExitCode::SUCCESS)
}
