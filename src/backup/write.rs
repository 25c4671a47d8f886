//! Writes a backup.
//!
//! Invariant: what earlier attempts have left of the machine is removed first; the backup gets its name last, after its
//! files and its manifest are on the device, and the digest of that is known: what has the name, and another digest, was
//! written by another program.
//! Failure: the error; what was begun stays under another name, for [`Target::sweep`].

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use podspec::VmUid;
use sha2::{Digest as _, Sha256};

use super::copy::{Copying, Named};
use super::directory::Directory;
use super::error::{Error, Result};
use super::manifest::{Entry, Manifest, Parent, file_name};
use super::{Step, Target, is_left, unfinished};
use crate::files;
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
        self.run(move |this| {
            let machine = this.made_machine()?;
            machine.make(&unfinished(uid)).map(drop)
        })
        .await
    }

    /// Writes a backup that was prepared with copies of files, the upper one first, without its
    /// [name](Self::name); returns its manifest, and the digest of that. `step` gets the bytes that were read.
    pub async fn write(
        &self,
        draft: Draft,
        originals: Vec<Original>,
        step: Step<'_>,
    ) -> Result<(Manifest, Digest)> {
        let written = self.write_all(draft, originals, step).await;
        if let Err(error) = &written
            && !matches!(error, Error::Hung(_))
        {
            // A target that is full has room for others again. The error is what counts.
            let _ = self.sweep().await;
        }
        written
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
            let opened = name.clone();
            let copying = self.run(move |this| this.open_pair(uid, original, &opened));
            let copied = self.copy(copying.await?, &mut *step).await?;
            manifest.read_bytes = manifest.read_bytes.saturating_add(copied.data);
            manifest.stored_bytes = manifest.stored_bytes.saturating_add(copied.data);
            manifest.files.push(Entry {
                name,
                bytes: copied.bytes,
                sha256: copied.sha256,
            });
        }
        faultpoint::point("backup.copied");
        self.run(move |this| {
            let sha256 = this.write_manifest(&manifest)?;
            Ok((manifest, sha256))
        })
        .await
    }

    /// Gives a backup that was written its name.
    pub async fn name(&self, uid: VmUid, parent: Option<Parent>) -> Result<()> {
        let named = self.run(move |this| this.name_now(uid, parent)).await;
        if let Err(error) = &named
            && !matches!(error, Error::Hung(_))
        {
            // As after a write.
            let _ = self.sweep().await;
        }
        named
    }

    /// Makes sure that a backup that was found is on the device with its name.
    pub async fn settle(&self, uid: VmUid) -> Result<()> {
        self.run(move |this| {
            let machine = this.made_machine()?;
            if let Some(directory) = machine.find(&uid.to_string())? {
                directory.sync()?;
            }
            machine.sync()
        })
        .await
    }

    /// Removes what attempts have left of the machine. No other attempt works on a backup of it.
    pub async fn sweep(&self) -> Result<()> {
        self.run(|this| {
            let Some(machine) = this.machine()? else {
                return Ok(());
            };
            let names = machine.names()?;
            for name in names.iter().filter(|name| is_left(name)) {
                machine.remove(name)?;
            }
            Ok(())
        })
        .await
    }

    fn open_pair(&self, uid: VmUid, original: Original, name: &str) -> Result<Copying> {
        let path = original.path;
        let file = File::open(&path).map_err(files::failed("open", &path))?;
        let from = Named { file, path };
        let file = self.begun(uid)?.create(name)?;
        let path = self.shown(uid, name);
        Ok(Copying::new(from, Some(Named { file, path }), u64::MAX))
    }

    /// The directory of a backup that is being written.
    fn begun(&self, uid: VmUid) -> Result<Directory> {
        let begun = match self.machine()? {
            Some(machine) => machine.find(&unfinished(uid))?,
            None => None,
        };
        let gone =
            || files::failed("open", &self.shown(uid, ""))(std::io::ErrorKind::NotFound.into());
        Ok(begun.ok_or_else(gone)?)
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<Digest> {
        let uid = manifest.uid;
        let path = self.shown(uid, MANIFEST);
        let text = serde_json::to_vec_pretty(manifest).map_err(std::io::Error::other);
        let text = text.map_err(files::failed("write", &path))?;
        let begun = self.begun(uid)?;
        let mut file = begun.create(MANIFEST)?;
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        written.map_err(files::failed("write", &path))?;
        begun.sync()?;
        faultpoint::point("backup.written");
        Ok(sum(&text))
    }

    fn name_now(&self, uid: VmUid, parent: Option<Parent>) -> Result<()> {
        let machine = self.made_machine()?;
        let from = unfinished(uid);
        let to = uid.to_string();
        machine.rename(&from, &to)?;
        faultpoint::point("backup.renamed");
        if let Some(parent) = parent.map(|parent| parent.uid)
            && machine.find(&parent.to_string())?.is_none()
        {
            // Another node has just removed it.
            machine.rename(&to, &from)?;
            return Err(Error::ParentRemoved(parent));
        }
        machine.sync()?;
        faultpoint::point("backup.named");
        Ok(())
    }
}

/// The digest of a manifest.
pub(super) fn sum(text: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(text).into())
}
