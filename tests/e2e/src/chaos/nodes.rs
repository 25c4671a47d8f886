//! What the nodes of a chaos run have: domains, disks with their layers, copies for clients.
//!
//! Invariant: looking changes nothing. A file that goes away meanwhile is not counted.
//! Failure: a node that does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;
use nodeapi::v1::Disk;

use crate::Cluster;
use crate::stack::Stack;

/// Everything that the nodes have.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// UUIDs of domains that run.
    pub(super) domains: BTreeSet<String>,
    /// By the UID of their machine, which is the name of their folder.
    pub(super) disks: BTreeMap<String, DiskFiles>,
    /// As the daemons list them.
    pub(super) listed: Vec<Disk>,
    /// Files that belong to clients: copies of disks, parts of uploads.
    pub(super) transfers: Vec<String>,
    /// What contradicts itself.
    pub(super) findings: Vec<String>,
}

/// The files of a disk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskFiles {
    /// Whether a guest's memory is beside it.
    pub(super) has_memory: bool,
    /// Files of layers beside the first one.
    pub(super) layers: usize,
}

impl Nodes {
    pub(super) async fn read(cluster: &Cluster) -> Result<Self> {
        let mut all = Self::default();
        for node in cluster.nodes() {
            all.add(node).await?;
        }
        Ok(all)
    }

    async fn add(&mut self, node: &Stack) -> Result<()> {
        let running = node.virsh(&["list", "--uuid"])?;
        for uuid in running.split_whitespace() {
            if !self.domains.insert(uuid.to_owned()) {
                let finding = format!("domain {uuid} runs on two nodes");
                self.findings.push(finding);
            }
        }
        for uid in names(&node.dir().join("state/disks")) {
            let folder = node.dir().join("state/disks").join(&uid);
            let files = DiskFiles {
                has_memory: folder.join("memory.save").exists(),
                layers: names(&folder.join("layers")).len(),
            };
            if self.disks.insert(uid.clone(), files).is_some() {
                let finding = format!("two nodes have a disk {uid}");
                self.findings.push(finding);
            }
        }
        self.listed.extend(node.node().await?.disks().await?);
        for folder in ["state/exports", "state/images/partial"] {
            let left = names(&node.dir().join(folder)).into_iter();
            // What kubelet pulls has a place there, too.
            let left =
                left.filter(|name| folder.ends_with("exports") || name.starts_with("upload-"));
            let left = left.map(|name| format!("{}/{folder}/{name}", node.dir().display()));
            self.transfers.extend(left);
        }
        Ok(())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
