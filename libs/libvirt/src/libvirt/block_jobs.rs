//! Block jobs of a running machine's first disk.
//!
//! Invariant: the emulator says which files it has open, as it does of the one that it writes to. libvirt passes
//! the request on only when no other change of the domain is in progress.
//! Failure: libvirt's error; after one of a job, only a look shows what it has done.

use std::collections::HashMap;

use serde_json::Value;
use uuid::Uuid;
use virt::domain::Domain;
use virt::error::Error as VirtError;

use super::disks::{NODES, OPTIONS};
use super::monitor::content;
use super::{Libvirt, absent_is_none};
use crate::{BlockCommit, BlockJob, BlockJobEnd, Error, OpenFile, Result, ffi, read};

/// Maximum number of nodes that are believed: a few for each file of each disk.
const MOST: usize = 4096;

/// What the names of the nodes for files end with, which libvirt puts below those of a format.
const STORAGE: &str = "-storage";

impl Libvirt {
    pub(super) async fn commit_first_disk(&self, domain: Uuid, commit: BlockCommit) -> Result<()> {
        const CALL: &str = "merge disk files";
        let disk = self.first_disk_name(CALL, domain).await?;
        let begin = move |d: &Domain| ffi::commit(d, &disk, &commit);
        self.ask_emulator(CALL, domain, begin).await
    }

    pub(super) async fn pull_first_disk(&self, domain: Uuid, bytes_per_second: u64) -> Result<()> {
        const CALL: &str = "pull disk files";
        let disk = self.first_disk_name(CALL, domain).await?;
        let begin = move |d: &Domain| ffi::pull(d, &disk, bytes_per_second);
        self.ask_emulator(CALL, domain, begin).await
    }

    pub(super) async fn first_disk_job(&self, domain: Uuid) -> Result<Option<BlockJob>> {
        const CALL: &str = "look at block job";
        let xml = self.description(domain).await?;
        let xml = xml.ok_or(Error::NoDomain(domain))?;
        let disk = first_name(CALL, &xml)?;
        let look = move |d: &Domain| ffi::block_job(d, &disk);
        let job = self.ask_emulator(CALL, domain, look).await?;
        // The emulator may be ready before libvirt has its event, and libvirt refuses a pivot until then.
        let is_known = read::first_disk_can_pivot(&xml);
        Ok(job.map(|job| if is_known { job } else { job.unfinished() }))
    }

    pub(super) async fn end_first_disk_job(&self, domain: Uuid, end: BlockJobEnd) -> Result<()> {
        const CALL: &str = "end block job";
        let disk = self.first_disk_name(CALL, domain).await?;
        let end = move |d: &Domain| ffi::end_block_job(d, &disk, end);
        self.ask_emulator(CALL, domain, end).await
    }

    pub(super) async fn open_files(&self, domain: Uuid) -> Result<Option<Vec<OpenFile>>> {
        const CALL: &str = "look at open disk files";
        // A guest may have taken the emulator over: its answer is long, and is read where calls may block.
        let look = |d: &Domain| -> Result<Option<Result<Vec<OpenFile>>>, VirtError> {
            if !d.is_active()? {
                return Ok(None);
            }
            let nodes = d.qemu_monitor_command(NODES, 0)?;
            let files = content(CALL, &nodes).map(|nodes| files_of(&nodes));
            let files = files.and_then(|files| {
                files.ok_or_else(|| Error::Refused {
                    call: CALL,
                    reason: "the emulator does not say which files it has open".to_owned(),
                })
            });
            Ok(Some(files))
        };
        let looked = self.ask_emulator(CALL, domain, look).await;
        absent_is_none(looked)?.flatten().transpose()
    }

    /// The name of the first disk of a domain.
    pub(super) async fn first_disk_name(&self, call: &'static str, domain: Uuid) -> Result<String> {
        let xml = self.description(domain).await?;
        first_name(call, &xml.ok_or(Error::NoDomain(domain))?)
    }
}

fn first_name(call: &'static str, xml: &str) -> Result<String> {
    let refused = |reason: &str| Error::Refused {
        call,
        reason: reason.to_owned(),
    };
    let targets = read::disk_targets(xml).ok_or_else(|| refused("its XML is not read"))?;
    let first = targets.into_iter().next();
    first.ok_or_else(|| refused("it has no first disk"))
}

/// The files of all nodes; `None` when one has no plain name: it may be any. Also for more nodes than an emulator
/// has.
fn files_of(nodes: &Value) -> Option<Vec<OpenFile>> {
    let nodes = nodes.as_array().filter(|nodes| nodes.len() <= MOST)?;
    let named = nodes.iter().filter_map(|node| {
        let name = node.get("node-name")?.as_str()?;
        Some((name, node))
    });
    let named: HashMap<_, _> = named.collect();
    let storage = named.iter().filter_map(|(name, node)| {
        let disk = name.strip_suffix(STORAGE)?;
        Some((*node, disk))
    });
    let files = storage.map(|(node, disk)| {
        let path = node.get("file")?.as_str()?;
        let format = named.get(&*format!("{disk}-format")).unwrap_or(&node);
        let is_read_only = format.get("ro")?.as_bool()?;
        (!path.starts_with(OPTIONS)).then(|| OpenFile {
            path: path.into(),
            is_read_only,
        })
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_file_is_named_once_with_the_rights_of_its_format() {
        let node = |name: &str, file: &str, reads: bool| json!({"node-name": name, "file": file, "ro": reads});
        let nodes = json!([
            node("libvirt-1-format", "json:{\"driver\": \"qcow2\"...", false),
            node("libvirt-1-storage", "/d/1.qcow2", false),
            node("libvirt-2-format", "/d/root.qcow2", true),
            node("libvirt-2-storage", "/d/root.qcow2", false),
            node("libvirt-3-storage", "/d/seed.iso", true),
            {"node-name": "#block123"},
        ]);
        let file = |path: &str, is_read_only| OpenFile {
            path: path.into(),
            is_read_only,
        };
        let expected = [
            file("/d/1.qcow2", false),
            file("/d/root.qcow2", true),
            file("/d/seed.iso", true),
        ];
        let mut files = files_of(&nodes).unwrap();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        assert_eq!(files, expected);
        let odd = node("libvirt-1-storage", "json:{}", true);
        for odd in [
            json!({}),
            json!([odd]),
            json!([{"node-name": "libvirt-1-storage"}]),
        ] {
            assert_eq!(files_of(&odd), None, "{odd}");
        }
    }

    /// A guest has taken the emulator over.
    #[test]
    fn more_nodes_than_an_emulator_has_are_not_read() {
        let node =
            |n: usize| json!({"node-name": format!("{n}-storage"), "file": "/x", "ro": true});
        let nodes = |count: usize| (0..count).map(node).collect::<Vec<_>>();
        assert_eq!(files_of(&nodes(MOST).into()).unwrap().len(), MOST);
        assert_eq!(files_of(&nodes(50_000).into()), None);
    }
}
