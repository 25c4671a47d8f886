//! Writes a backup.
//!
//! Invariant: what earlier attempts have left of the machine is removed first; the backup is published last, after all its
//! files are stored, and the digest of its manifest is known: what is published with another digest was written by another
//! program.
//! Failure: the error; what was begun is no backup, and stays for [`Target::sweep`].

use std::path::PathBuf;

use podspec::VmUid;
use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};
use super::manifest::{Entry, Manifest, Parent, file_name};
use super::{Step, Target};
use crate::images::{Digest, Format};

/// The name of a manifest.
pub(super) const MANIFEST: &str = "manifest.json";

/// What is known of a backup before it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Its object.
    pub uid: VmUid,
    /// The machine.
    pub vm: VmUid,
    /// `namespace/name` of the machine.
    pub name: String,
    /// When the disk was as it is in the backup, in nanoseconds since the epoch.
    pub created_at: i64,
    /// Whether the guest had frozen its file systems.
    pub quiesced: bool,
    /// Whether the machine ran.
    pub running: bool,
    /// Size that the guest saw, in bytes.
    pub virtual_bytes: u64,
    /// The image that the disk was made from.
    pub image: String,
    /// `sha256:…` of it.
    pub digest: String,
    /// The backup that it is based on.
    pub parent: Option<Parent>,
    /// Why it is based on none.
    pub full_reason: String,
}

/// A file of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// Where it is.
    pub path: PathBuf,
    /// How it is to be read.
    pub format: Format,
}

impl Target {
    /// Shows that a backup can be written, before anything is done for it elsewhere.
    pub async fn prepare(&self, uid: VmUid) -> Result<()> {
        self.sweep().await?;
        self.store.begin(uid).await
    }

    /// Writes a backup that was prepared with copies of files, the upper one first, without
    /// [publishing](Self::publish) it; returns its manifest, and the digest of that. `step` gets the bytes that were read.
    pub async fn write(
        &self,
        draft: Draft,
        originals: Vec<Original>,
        step: Step<'_>,
    ) -> Result<(Manifest, Digest)> {
        let written = self.write_all(draft, originals, step).await;
        self.tidied(written).await
    }

    async fn write_all(
        &self,
        draft: Draft,
        originals: Vec<Original>,
        step: Step<'_>,
    ) -> Result<(Manifest, Digest)> {
        let uid = draft.uid;
        let mut manifest = Manifest::new(draft);
        for (number, original) in originals.into_iter().enumerate() {
            let name = file_name(number, original.format);
            let copied = self.store.put(uid, name.clone(), original, &mut *step);
            let copied = copied.await?;
            manifest.read_bytes = manifest.read_bytes.saturating_add(copied.data);
            manifest.stored_bytes = manifest.stored_bytes.saturating_add(copied.data);
            manifest.files.push(Entry {
                name,
                bytes: copied.bytes,
                sha256: copied.sha256,
            });
        }
        faultpoint::point("backup.copied");
        let text = manifest.text().map_err(|reason| self.odd(uid, reason))?;
        let sha256 = sum(&text);
        self.store.put_manifest(uid, text).await?;
        faultpoint::point("backup.written");
        Ok((manifest, sha256))
    }

    /// Makes a backup of what was [written](Self::write).
    pub async fn publish(&self, manifest: &Manifest) -> Result<()> {
        let published = self.publish_now(manifest).await;
        self.tidied(published).await
    }

    async fn publish_now(&self, manifest: &Manifest) -> Result<()> {
        let uid = manifest.uid;
        let text = manifest.text().map_err(|reason| self.odd(uid, reason))?;
        let bytes = text.len() as u64;
        self.store.publish(uid, text).await?;
        faultpoint::point("backup.renamed");
        if let Some(parent) = manifest.parent.map(|parent| parent.uid)
            && !self.store.has(parent).await?
        {
            // Another node has just removed it.
            self.store.unpublish(uid).await?;
            return Err(Error::ParentRemoved(parent));
        }
        self.store.settle_new(manifest, bytes).await?;
        faultpoint::point("backup.named");
        Ok(())
    }

    /// A target that is full has room for others again after an error.
    async fn tidied<T>(&self, done: Result<T>) -> Result<T> {
        if let Err(error) = &done
            && !matches!(error, Error::Hung(_) | Error::Crowded(_))
        {
            // The error is what counts.
            let _ = self.sweep().await;
        }
        done
    }

    /// Makes sure that a power cut takes nothing of a backup that was found.
    pub async fn settle(&self, uid: VmUid) -> Result<()> {
        self.store.settle(uid).await
    }

    /// Removes what attempts have left of the machine. No other attempt works on a backup of it.
    pub async fn sweep(&self) -> Result<()> {
        self.store.sweep().await
    }
}

/// The digest of a manifest.
pub(super) fn sum(text: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(text).into())
}
