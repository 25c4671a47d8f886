//! A backup and those that it is based on, to be verified or restored.
//!
//! Invariant: what is handed on was compared with the manifests while it was copied: who can write to the target changes
//! nothing in it afterwards.
//! Failure: [`Error::Spoiled`] names the file.

use std::path::{Path, PathBuf};

use podspec::VmUid;

use super::copy::{Copying, Named};
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
            let file = file.clone();
            let looked = self
                .target
                .run(move |target| target.open_now(uid, &file).map(drop));
            looked.await?;
        }
        Ok(())
    }

    /// Reads all, and compares it with the manifests; returns how many bytes were read. `step` gets them, too.
    pub async fn verify(&self, step: Step<'_>) -> Result<u64> {
        let mut bytes: u64 = 0;
        for (uid, file) in self.files() {
            let from = self.open(uid, file).await?;
            self.copy(uid, file, Copying::new(from, None, file.bytes), &mut *step)
                .await?;
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
            // Last: nothing but the copy is waited for while it is open.
            let from = self.open(uid, file).await?;
            self.copy(
                uid,
                file,
                Copying::new(from, Some(to), file.bytes),
                &mut *step,
            )
            .await?;
            let format = file.format();
            staged.push(Staged { path, format });
        }
        Ok(staged)
    }

    fn files(&self) -> impl Iterator<Item = (VmUid, &Entry)> {
        let all = self.backups.iter();
        all.flat_map(|(manifest, _)| manifest.files.iter().map(|file| (manifest.uid, file)))
    }

    /// A file of the length in its manifest.
    async fn open(&self, uid: VmUid, entry: &Entry) -> Result<Named> {
        let entry = entry.clone();
        let opened = self.target.run(move |target| target.open_now(uid, &entry));
        opened.await
    }

    async fn copy(&self, uid: VmUid, file: &Entry, copying: Copying, step: Step<'_>) -> Result<()> {
        let copied = self.target.copy(copying, step).await?;
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
}

impl Target {
    /// A file of the length in its manifest. Blocks.
    fn open_now(&self, uid: VmUid, entry: &Entry) -> Result<Named> {
        let directory = match self.machine()? {
            Some(machine) => machine.find(&uid.to_string())?,
            None => None,
        };
        let file = match directory {
            Some(directory) => directory.read(&entry.name)?,
            None => None,
        };
        let spoiled = |reason| self.spoiled(uid, entry.name.clone(), reason);
        let file = file.ok_or_else(|| spoiled("it is gone".to_owned()))?;
        let path = self.shown(uid, &entry.name);
        let is = file.metadata().map_err(files::failed("look at", &path))?;
        if is.len() != entry.bytes {
            let reason = format!("it has {} bytes, and had {}", is.len(), entry.bytes);
            return Err(spoiled(reason));
        }
        Ok(Named { file, path })
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
