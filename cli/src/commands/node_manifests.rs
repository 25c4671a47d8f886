//! `node manifests`: writes the disks of this node and the manifests beside them to standard output,
//! for `recover`.
//!
//! Invariant: one line of JSON for each disk, also for one without a manifest.
//! Failure: the daemon's, as a sentence; what was written is incomplete then. A manifest that cannot be read
//! is one of a disk: the reason is in its line.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use nodeapi::v1::{Disk, GetManifestRequest, ListDisksRequest};
use nodeapi::{Deadlines, client, connect};
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

/// Where the daemon is.
#[derive(Debug, Args)]
pub(crate) struct NodeManifestsArgs {
    /// Socket of the daemon's node API.
    #[arg(long, value_name = "SOCKET", default_value = client::DEFAULT_ENDPOINT)]
    node_endpoint: String,
}

/// A disk of a node.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KeptDisk {
    /// UID under which the node has it.
    pub(super) uid: String,
    /// `namespace/name` of its machine.
    pub(super) name: String,
    pub(super) complete: bool,
    /// Memory was saved beside it.
    pub(super) saved_memory: bool,
    /// Why its record cannot be read; empty: it can.
    pub(super) unreadable: String,
    /// Its manifest, if there is one.
    pub(super) manifest: Option<String>,
    /// Why its manifest cannot be read; empty: it can, or there is none.
    pub(super) manifest_error: String,
}

impl From<Disk> for KeptDisk {
    fn from(disk: Disk) -> Self {
        Self {
            uid: disk.vm_uid,
            name: disk.vm_name,
            complete: disk.complete,
            saved_memory: disk.saved_memory,
            unreadable: disk.unreadable,
            manifest: None,
            manifest_error: String::new(),
        }
    }
}

pub(crate) async fn run(args: &NodeManifestsArgs) -> anyhow::Result<ExitCode> {
    let mut daemon = connect(&args.node_endpoint, Deadlines::default())?;
    let disks = daemon.list_disks(ListDisksRequest {}).await;
    for disk in disks.map_err(|status| failure(&status))?.into_inner().disks {
        let has_manifest = disk.manifest_bytes > 0;
        let mut kept = KeptDisk::from(disk);
        if has_manifest {
            let vm_uid = kept.uid.clone();
            match daemon.get_manifest(GetManifestRequest { vm_uid }).await {
                Ok(found) => {
                    let text = found.into_inner().manifest;
                    kept.manifest = Some(String::from_utf8_lossy(&text).into_owned());
                }
                Err(status) if status.code() == Code::Unimplemented => {
                    return Err(failure(&status));
                }
                // The others are of use all the same.
                Err(status) => kept.manifest_error = status.message().to_owned(),
            }
        }
        super::print(&format!("{}\n", serde_json::to_string(&kept)?))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(status: &Status) -> anyhow::Error {
    match status.code() {
        Code::Unimplemented => anyhow!(
            "the daemon of this node is older than this program and keeps no manifests: upgrade the node"
        ),
        Code::Unavailable => anyhow!("the daemon is not available: {}", status.message()),
        _ => anyhow!("{}", status.message().to_owned()),
    }
}
