//! A backup and those that it is based on, to be verified or restored.
//!
//! Invariant: what is handed on was compared with the manifests while it was copied: who can write to the target changes
//! nothing in it afterwards.
//! Failure: [`Error::Spoiled`] names the file.

use std::path::{Path, PathBuf};

use podspec::VmUid;

use super::copy::Named;
use super::error::{Error, Result};
use super::manifest::{Entry, Manifest};
use super::{Step, Target};
use crate::files;
use crate::images::{Digest, Format};

/// The newest backup first.
#[derive(Debug)]
pub struct Chain {
    target: Target,
    backups: Vec<(Manifest, Digest)>,
}

/// A copy of a file of a chain on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Where it is.
    pub path: PathBuf,
    /// How it is to be read.
    pub format: Format,
}

impl Chain {
    pub(super) const fn new(target: Target, backups: Vec<(Manifest, Digest)>) -> Self {
        Self { target, backups }
    }

    /// The newest backup, and the digest of its manifest.
    pub fn newest(&self) -> Option<&(Manifest, Digest)> {
        self.backups.first()
    }

    /// The digest of the manifest of a backup in it.
    pub fn digest_of(&self, uid: VmUid) -> Option<Digest> {
        let mut all = self.backups.iter();
        let found = all.find(|(manifest, _)| manifest.uid == uid);
        found.map(|(_, sha256)| *sha256)
    }

    /// How many backups it has.
    pub fn length(&self) -> usize {
        self.backups.len()
    }

    /// How many files it has.
    pub fn count(&self) -> usize {
        self.files().count()
    }

    /// How many bytes these have.
    pub fn bytes(&self) -> u64 {
        let all = self.backups.iter().map(|(manifest, _)| manifest.bytes());
        all.fold(0, u64::saturating_add)
    }

    /// How many of these are no blocks of zeros, as far as the manifests say.
    pub fn stored(&self) -> u64 {
        let all = self.backups.iter();
        let all = all.map(|(manifest, _)| manifest.stored_bytes.min(manifest.bytes()));
        all.fold(0, u64::saturating_add)
    }

    /// Refuses a backup of another namespace than that of a machine, `namespace/name`.
    pub fn check_namespace(&self, requested: &str) -> Result<()> {
        match self.newest() {
            Some((manifest, _)) => manifest.check_namespace(requested),
            None => Ok(()),
        }
    }

    /// Compares lengths alone, which takes a moment.
    pub async fn check_lengths(&self) -> Result<()> {
        for (uid, file) in self.files() {
            self.check_length(uid, file).await?;
        }
        Ok(())
    }

    /// Reads all, and compares it with the manifests; returns how many bytes were read. `step` gets them, too.
    pub async fn verify(&self, step: Step<'_>) -> Result<u64> {
        let mut bytes: u64 = 0;
        for (uid, file) in self.files() {
            self.copy(uid, file, None, &mut *step).await?;
            bytes = bytes.saturating_add(file.bytes);
        }
        Ok(bytes)
    }

    /// Copies all files to a directory of the node, the upper one first, and compares them.
    pub async fn stage(&self, directory: &Path, step: Step<'_>) -> Result<Vec<Staged>> {
        let mut staged = Vec::new();
        for (number, (uid, file)) in self.files().enumerate() {
            let path = directory.join(number.to_string());
            let mut options = tokio::fs::OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o600);
            let created = options.open(&path).await;
            let created = created.map_err(files::failed("create", &path))?;
            let to = Named {
                file: created.into_std().await,
                path: path.clone(),
            };
            self.copy(uid, file, Some(to), &mut *step).await?;
            let format = file.format();
            staged.push(Staged { path, format });
        }
        Ok(staged)
    }

    fn files(&self) -> impl Iterator<Item = (VmUid, &Entry)> {
        let all = self.backups.iter();
        all.flat_map(|(manifest, _)| manifest.files.iter().map(|file| (manifest.uid, file)))
    }

    async fn check_length(&self, uid: VmUid, entry: &Entry) -> Result<()> {
        let length = self.target.store.length(uid, entry.name.clone()).await?;
        let length = length.ok_or_else(|| self.gone(uid, entry))?;
        if length == entry.bytes {
            return Ok(());
        }
        let reason = format!("it has {length} bytes, and had {}", entry.bytes);
        Err(self.target.spoiled(uid, entry.name.clone(), reason))
    }

    async fn copy(
        &self,
        uid: VmUid,
        file: &Entry,
        to: Option<Named>,
        step: Step<'_>,
    ) -> Result<()> {
        self.check_length(uid, file).await?;
        let store = &self.target.store;
        let copied = store.get(uid, file.name.clone(), file.bytes, to, step);
        let copied = copied.await?.ok_or_else(|| self.gone(uid, file))?;
        if (copied.bytes, copied.sha256) != (file.bytes, file.sha256) {
            let reason = format!(
                "it has {} bytes with the SHA-256 {}, and had {} with {}",
                copied.bytes,
                copied.sha256.hex(),
                file.bytes,
                file.sha256.hex()
            );
            return Err(self.target.spoiled(uid, file.name.clone(), reason));
        }
        Ok(())
    }

    fn gone(&self, uid: VmUid, entry: &Entry) -> Error {
        let name = entry.name.clone();
        self.target.spoiled(uid, name, "it is gone".to_owned())
    }
}

impl Manifest {
    /// As [`Chain::check_namespace`].
    pub fn check_namespace(&self, requested: &str) -> Result<()> {
        let namespace = |name: &str| name.split_once('/').map(|parts| parts.0.to_owned());
        let own = namespace(requested).filter(|own| !own.is_empty());
        if own.is_some() && own == namespace(&self.name) {
            return Ok(());
        }
        Err(Error::OtherNamespace {
            backup: self.uid,
            had: self.name.clone(),
            requested: requested.to_owned(),
        })
    }
}
