//! What a node offers: its disks, each with what was kept of its machine.
//!
//! Invariant: what a node writes is bounded; a manifest counts only if it is that of the disk's machine.
//! Failure: the node's, with the sentence of the program there.

use std::path::Path;

use anyhow::{Context as _, bail};
use crds::backup::MachineManifest;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::cluster::Cluster;
use crate::cluster::node_pod::{End, NodePod};
use crate::commands::node_manifests::KeptDisk;

/// Longest line of the program on the node.
const LINE: u64 = 1 << 20;
/// Most disks of a node.
const MOST: usize = 10_000;

/// A disk, and what was kept of its machine.
#[derive(Debug)]
pub(super) struct Offer {
    disk: KeptDisk,
    manifest: Result<MachineManifest, String>,
}

impl Offer {
    pub(super) fn new(disk: KeptDisk) -> Self {
        Self {
            manifest: checked(&disk),
            disk,
        }
    }

    pub(super) fn uid(&self) -> &str {
        &self.disk.uid
    }

    /// `namespace/name` of the machine.
    pub(super) fn name(&self) -> &str {
        &self.disk.name
    }

    pub(super) fn namespace(&self) -> &str {
        self.disk.name.split_once('/').map_or("", |(ns, _)| ns)
    }

    pub(super) fn machine(&self) -> &str {
        self.disk.name.split_once('/').map_or("", |(_, name)| name)
    }

    /// Whether the disk may be the one that the machine had last.
    pub(super) const fn may_have_data(&self) -> bool {
        self.disk.complete || !self.disk.unreadable.is_empty()
    }

    /// Whether a machine can have the name: a node may write anything.
    pub(super) fn has_valid_name(&self) -> bool {
        is_dns(self.namespace(), 63)
            && !self.namespace().contains('.')
            && is_dns(self.machine(), 253)
    }

    pub(super) const fn has_saved_memory(&self) -> bool {
        self.disk.saved_memory
    }

    /// What was kept of the machine, or why it cannot be used.
    pub(super) fn manifest(&self) -> Result<&MachineManifest, String> {
        self.manifest.as_ref().map_err(Clone::clone)
    }
}

fn is_dns(name: &str, most: usize) -> bool {
    let is_part = |part: &str| {
        let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(is_inner) && part.trim_matches('-') == part
    };
    name.len() <= most && name.split('.').all(is_part)
}

fn checked(disk: &KeptDisk) -> Result<MachineManifest, String> {
    if !disk.unreadable.is_empty() {
        return Err(format!("its record cannot be read: {}", disk.unreadable));
    }
    if !disk.complete {
        return Err("the disk is not complete".to_owned());
    }
    if !disk.manifest_error.is_empty() {
        return Err(format!(
            "its manifest cannot be read: {}",
            disk.manifest_error
        ));
    }
    let text = disk.manifest.as_deref();
    let text = text.ok_or("no manifest lies beside the disk: make the machine by hand")?;
    let manifest = MachineManifest::from_json(text);
    let manifest = manifest.map_err(|error| format!("its manifest cannot be used: {error}"))?;
    let named = format!("{}/{}", manifest.namespace, manifest.name);
    if named != disk.name || manifest.record.disk != disk.uid {
        return Err(format!("its manifest is that of machine {named}"));
    }
    Ok(manifest)
}

/// The disks of a node.
pub(super) async fn read(
    cluster: &Cluster,
    namespace: &str,
    node: &str,
) -> anyhow::Result<Vec<KeptDisk>> {
    let pod = NodePod::find(cluster.client.clone(), namespace, node).await?;
    let command = ["vmletctl", "node", "manifests"].map(str::to_owned);
    let mut program = pod.start(command.into()).await?;
    let read = lines(&mut BufReader::new(&mut program.output)).await;
    let ended = program.end().await;
    match ended.with_context(|| format!("failed to read the disks of node {node}"))? {
        End::Success => read,
        End::Failure(_, words) => bail!("failed to read the disks of node {node}: {words}"),
    }
}

/// The disks of a node, as a program there has written them to a file.
pub(super) async fn read_file(file: &Path) -> anyhow::Result<Vec<KeptDisk>> {
    let failed = || format!("failed to read {}", file.display());
    if file.as_os_str() == "-" {
        return lines(&mut BufReader::new(tokio::io::stdin()))
            .await
            .with_context(failed);
    }
    let opened = tokio::fs::File::open(file).await.with_context(failed)?;
    lines(&mut BufReader::new(opened))
        .await
        .with_context(failed)
}

async fn lines(from: &mut (impl AsyncBufRead + Unpin)) -> anyhow::Result<Vec<KeptDisk>> {
    let mut disks = Vec::new();
    loop {
        let mut line = Vec::new();
        let read = (&mut *from).take(LINE).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(disks);
        }
        if line.last() != Some(&b'\n') || disks.len() == MOST {
            bail!("the node sends more than a node can have");
        }
        let disk = serde_json::from_slice(&line);
        disks.push(disk.context("failed to understand the program on the node")?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_node_writes_is_bounded() {
        let disk = KeptDisk {
            uid: "u-1".to_owned(),
            ..KeptDisk::default()
        };
        let line = serde_json::to_string(&disk).unwrap() + "\n";
        let two = line.repeat(2);
        let read = lines(&mut two.as_bytes()).await.unwrap();
        assert_eq!(read, [disk.clone(), disk]);
        let long = "x".repeat(2 << 20);
        for odd in ["{}", "no json\n", &long] {
            assert!(lines(&mut odd.as_bytes()).await.is_err());
        }
        let many = "{}\n".repeat(MOST + 1);
        assert!(lines(&mut many.as_bytes()).await.is_err());
    }
}
