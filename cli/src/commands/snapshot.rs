//! `snapshot`: takes a snapshot of a virtual machine.
//!
//! Invariant: the object is created once; waiting for it changes nothing.
//! Failure: the cluster's; a snapshot that the node does not take is an error with the node's words.

pub(crate) mod list;
pub(crate) mod revert;

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crds::conditions::SNAPSHOT_CREATED;
use crds::{Quiesce, VirtualMachineSnapshot, VirtualMachineSnapshotSpec};
use k8s_openapi::jiff::Timestamp;

use super::requested;
use crate::cluster::{Cluster, ClusterArgs, Names, seconds};

/// Reason of a snapshot that is not taken.
const FAILED: &str = "VirtualMachineSnapshotCreationFailed";

/// Machine of which to take a snapshot.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// Name of the virtual machine.
    #[arg(value_name = "NAME")]
    machine: String,
    /// Name of the snapshot [default: name of the machine, date and time].
    #[arg(long = "name", value_name = "SNAPSHOT")]
    snapshot: Option<String>,
    /// Let the guest agent freeze the file systems, and wait for it for at most this time, such as
    /// 30s or 5m; no snapshot is taken without it.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m",
        value_parser = seconds
    )]
    quiesce: Option<u32>,
    /// Include the memory of the guest, from which a machine that reverts resumes.
    #[arg(long, conflicts_with = "quiesce")]
    memory: bool,
    /// Description of the snapshot.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Wait until the node has taken the snapshot.
    #[arg(short, long, alias = "wait")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let machine = Names::machine(&args.machine);
    cluster.find(machine).await?;
    let name = args.snapshot.clone();
    let name = name.unwrap_or_else(|| requested::default_name(machine, Timestamp::now()));
    let spec = VirtualMachineSnapshotSpec {
        vm_name: machine.to_owned(),
        memory: args.memory,
        quiesce: args.quiesce.map(|seconds| Quiesce {
            timeout: Some(format!("{seconds}s")),
        }),
        description: args.description.clone(),
    };
    let snapshot = VirtualMachineSnapshot::new(&name, spec);
    let uid = requested::create(&cluster, &snapshot, "snapshot").await?;
    if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        taken(&cluster, &name, &uid).await?;
        super::print(&format!("virtualmachinesnapshot.vmlet.dev/{name} taken\n"))?;
    } else {
        super::print(&format!(
            "virtualmachinesnapshot.vmlet.dev/{name} requested\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the node has taken it, and says meanwhile what it waits for.
async fn taken(cluster: &Cluster, name: &str, uid: &str) -> anyhow::Result<()> {
    let deleted = format!("snapshot {name} was deleted before it was taken");
    requested::follow(
        cluster.api::<VirtualMachineSnapshot>(),
        name,
        uid,
        &deleted,
        |snapshot, said| {
            if snapshot.is_created() {
                return Ok(true);
            }
            if let Some(created) = snapshot.condition(SNAPSHOT_CREATED) {
                if created.reason == FAILED {
                    bail!("snapshot {name} is not taken: {}", created.message);
                }
                said.say(&created.message);
            }
            Ok(false)
        },
    )
    .await
}
