//! Manifests: what a machine is, kept beside its disk for the loss of the cluster's data.
//!
//! Invariant: a reader finds the old manifest or the new one, never a part; the same content is not
//! written again; a manifest is removed with its disk, and none is written beside a disk that is not
//! complete.
//! Failure: [`Error`]; a file that is no manifest of ours counts as none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use podspec::VmUid;

use super::Disks;
use super::error::{Error, Result};
use super::model::Phase;
use crate::files;
use crate::locks::Locks;

/// Largest manifest in bytes.
pub const MOST: usize = 64 << 10;
/// Longest UID of a cluster in bytes.
const CLUSTER: usize = 64;

/// What a machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// UID of the cluster that it is from.
    pub cluster: String,
    /// What the cluster has written.
    pub text: String,
}

/// What a list of disks says of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// UID of the cluster that it is from.
    pub cluster: String,
    /// Its size.
    pub bytes: usize,
}

/// What is known of manifests, so that a list of disks reads each of them once.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    summaries: Mutex<BTreeMap<VmUid, Option<Summary>>>,
    /// Held while a manifest is written, and while a disk's directory is removed.
    pub(super) turns: Locks<VmUid>,
}

impl Manifests {
    /// Forgets what is known.
    pub(super) fn forget(&self, vm: VmUid) {
        let known = self.summaries.lock();
        known.unwrap_or_else(PoisonError::into_inner).remove(&vm);
    }

    fn know(&self, vm: VmUid, summary: Option<Summary>) {
        let known = self.summaries.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.insert(vm, summary);
    }

    fn known(&self, vm: VmUid) -> Option<Option<Summary>> {
        let known = self.summaries.lock();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.get(&vm).cloned()
    }
}

impl Manifest {
    /// Takes a manifest, if it may be one.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(cluster: &str, text: Vec<u8>) -> Result<Self, &'static str> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if cluster.is_empty() || cluster.len() > CLUSTER || !cluster.chars().all(is_plain) {
            return Err("the UID of a cluster is needed");
        }
        if text.len() > MOST {
            return Err("at most 64 KiB are allowed");
        }
        let text = String::from_utf8(text).map_err(|_| "must be UTF-8")?;
        Ok(Self {
            cluster: cluster.to_owned(),
            text,
        })
    }

    fn summary(&self) -> Summary {
        Summary {
            cluster: self.cluster.clone(),
            bytes: self.text.len(),
        }
    }

    /// As it is in its file: the cluster in a line of its own, then the text.
    fn content(&self) -> String {
        format!("{}\n{}", self.cluster, self.text)
    }

    fn parse(content: Vec<u8>) -> Option<Self> {
        let content = String::from_utf8(content).ok()?;
        let (cluster, text) = content.split_once('\n')?;
        Self::new(cluster, text.as_bytes().to_vec()).ok()
    }
}

impl Disks {
    /// Keeps a manifest beside a disk that is complete.
    pub async fn set_manifest(&self, vm: VmUid, manifest: Manifest) -> Result<()> {
        let turn = self.manifests.turns.lock(&vm).await;
        match self.known(vm)?.phase {
            Phase::Ready | Phase::Layered | Phase::Pulled => {}
            Phase::Making => return Err(Error::Busy { vm, doing: "made" }),
            Phase::Deleting => {
                let doing = "removed";
                return Err(Error::Busy { vm, doing });
            }
        }
        let folder = self.folder(vm);
        let summary = manifest.summary();
        let manifests = Arc::clone(&self.manifests);
        // It goes on when the caller leaves, and no other write or removal begins before its end.
        let write = move || -> std::io::Result<()> {
            let _turn = turn;
            write(&folder, &manifest)?;
            manifests.know(vm, Some(summary));
            Ok(())
        };
        let written = tokio::task::spawn_blocking(write).await;
        let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        Ok(written.map_err(files::failed("write the manifest in", &self.folder(vm)))?)
    }

    /// The manifest beside a disk, if there is one. Blocks for a moment.
    pub fn manifest(&self, vm: VmUid) -> Result<Option<Manifest>> {
        let folder = self.folder(vm);
        Ok(read(&folder).map_err(files::failed("read the manifest in", &folder))?)
    }

    /// What is known of the manifest beside a disk. Blocks for a moment; a file that cannot be read is
    /// looked at again by the next call.
    pub fn manifest_summary(&self, vm: VmUid) -> Option<Summary> {
        if let Some(known) = self.manifests.known(vm) {
            return known;
        }
        let found = self.manifest(vm).ok()?;
        let summary = found.as_ref().map(Manifest::summary);
        self.manifests.know(vm, summary.clone());
        summary
    }

    /// Checks that a machine of this `namespace/name` can take the disk over.
    pub fn adoptable(&self, vm: VmUid, name: &str) -> Result<()> {
        let disk = self.known(vm)?;
        if disk.name != name {
            let had = disk.name.clone();
            let wanted = name.to_owned();
            return Err(Error::OtherMachine { vm, had, wanted });
        }
        match disk.phase {
            Phase::Making => return Err(Error::Busy { vm, doing: "made" }),
            Phase::Deleting => {
                let doing = "removed";
                return Err(Error::Busy { vm, doing });
            }
            Phase::Ready | Phase::Layered | Phase::Pulled => {}
        }
        match disk.holder.clone() {
            Some(holder) => Err(Error::InUse { vm, holder }),
            None => Ok(()),
        }
    }
}

fn write(folder: &Path, manifest: &Manifest) -> std::io::Result<()> {
    if read(folder)?.as_ref() == Some(manifest) {
        return Ok(());
    }
    let path = folder.join("manifest");
    let temporary = folder.join("manifest.new");
    service::files::replace(&path, &temporary, manifest.content().as_bytes())
}

/// `None`: there is no file, or one that is no manifest.
fn read(folder: &Path) -> std::io::Result<Option<Manifest>> {
    let file = match File::open(folder.join("manifest")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let most = MOST + CLUSTER + 2;
    let mut content = Vec::new();
    file.take(most as u64).read_to_end(&mut content)?;
    Ok(Manifest::parse(content))
}

#[cfg(test)]
mod tests;
