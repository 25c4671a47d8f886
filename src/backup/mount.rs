//! A target that is a directory which the node, or a pod for a claim, has mounted, as far as it has backups of one machine.
//!
//! ```text
//! TARGET/MACHINE/.new-BACKUP/     is being written, or was left by an attempt
//! TARGET/MACHINE/BACKUP/          complete
//! TARGET/MACHINE/.old-BACKUP/     is being removed
//! ```
//!
//! Invariant: a backup has its name only when all of it is on the device. Others may write to the directory, too: no link
//! in it is followed, nothing in it is opened but plain files. No thread of the runtime works on it, or closes what is open
//! in it: it may never answer.
//! Failure: [`Error`]; a step that was cut short can be repeated.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podspec::VmUid;
use tokio::sync::Semaphore;

use super::claim::Root;
use super::copy::{Copied, Copying, Named};
use super::directory::Directory;
use super::error::{Error, Result};
use super::manifest::LONGEST;
use super::write::MANIFEST;
use super::{DEADLINE, Original, Step};
use crate::files;
use crate::foreign::Foreign;

/// The directory of a target, and the places of threads that work on it.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    pub(super) target: String,
    pub(super) root: Root,
    pub(super) vm: VmUid,
    pub(super) foreign: Foreign,
    pub(super) threads: Arc<Semaphore>,
    /// Places of threads that work on targets of this kind, where those are bounded.
    pub(super) shared: Option<Arc<Semaphore>>,
}

impl Mount {
    /// Works on a thread, which what does not answer keeps from other work for this machine alone.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let owner = self.owner();
        let this = self.clone();
        // It may have files of the target open: to close one waits for the server, too.
        let unclaimed = self.foreign.unclaimed(owner.clone(), work);
        let worked = async {
            let aborted = |error: &dyn std::fmt::Display| Error::Aborted(error.to_string());
            let place = Arc::clone(&self.threads).acquire_owned().await;
            let place = place.map_err(|error| aborted(&error))?;
            // Last: what waits for its own target takes no place of others.
            let shared = match &self.shared {
                Some(all) => Some(Arc::clone(all).acquire_owned().await),
                None => None,
            };
            let shared = shared.transpose().map_err(|error| aborted(&error))?;
            let work = move || {
                // One that never returns keeps its places.
                let _places = (place, shared);
                unclaimed.claim()(&this)
            };
            let worked = self.foreign.run(&owner, work).await;
            worked.unwrap_or_else(|error| Err(aborted(&error)))
        };
        let in_time = tokio::time::timeout(DEADLINE, worked).await;
        in_time.unwrap_or_else(|_| Err(self.late()))
    }

    /// Why it took too long.
    fn late(&self) -> Error {
        let target = self.target.clone();
        let shared = self.shared.as_ref();
        let is_full = shared.is_some_and(|all| all.available_permits() == 0);
        if is_full && self.threads.available_permits() > 0 {
            Error::Crowded(target)
        } else {
            Error::Hung(target)
        }
    }

    /// Whom threads work for, one at a time.
    pub(super) fn owner(&self) -> String {
        format!("backup target {}, machine {}", self.target, self.vm)
    }

    /// Whether the target has anything of the machine, or had.
    pub(super) async fn knows_machine(&self) -> Result<bool> {
        self.run(|this| Ok(this.machine()?.is_some())).await
    }

    /// Makes the directory of a backup that is being written.
    pub(super) async fn begin(&self, uid: VmUid) -> Result<()> {
        self.run(move |this| {
            let machine = this.made_machine()?;
            machine.make(&unfinished(uid)).map(drop)
        })
        .await
    }

    /// Copies a file of the node to a backup that is being written.
    pub(super) async fn put(
        &self,
        uid: VmUid,
        name: String,
        original: Original,
        step: Step<'_>,
    ) -> Result<Copied> {
        let copying = self.run(move |this| this.open_pair(uid, original, &name));
        self.copy(copying.await?, step).await
    }

    /// Writes the manifest of a backup that is being written.
    pub(super) async fn put_manifest(&self, uid: VmUid, text: Vec<u8>) -> Result<()> {
        self.run(move |this| {
            let path = this.shown(uid, MANIFEST);
            let begun = this.begun(uid)?;
            let mut file = begun.create(MANIFEST)?;
            let written = file.write_all(&text).and_then(|()| file.sync_all());
            written.map_err(files::failed("write", &path))?;
            begun.sync()
        })
        .await
    }

    /// Gives a backup that was written its name.
    pub(super) async fn publish(&self, uid: VmUid) -> Result<()> {
        let from = unfinished(uid);
        self.run(move |this| this.made_machine()?.rename(&from, &uid.to_string()))
            .await
    }

    /// Takes the name of a backup away again.
    pub(super) async fn unpublish(&self, uid: VmUid) -> Result<()> {
        let to = unfinished(uid);
        self.run(move |this| this.made_machine()?.rename(&uid.to_string(), &to))
            .await
    }

    /// Whether a backup has its name.
    pub(super) async fn has(&self, uid: VmUid) -> Result<bool> {
        self.run(move |this| this.has_entry(&uid.to_string())).await
    }

    /// Makes sure that a backup is on the device with its name.
    pub(super) async fn settle(&self, uid: VmUid) -> Result<()> {
        self.run(move |this| {
            let machine = this.made_machine()?;
            if let Some(directory) = machine.find(&uid.to_string())? {
                directory.sync()?;
            }
            machine.sync()
        })
        .await
    }

    /// Removes what attempts have left of the machine.
    pub(super) async fn sweep(&self) -> Result<()> {
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

    /// Removes what attempts have left of one backup.
    pub(super) async fn discard(&self, uid: VmUid) -> Result<()> {
        self.removed_entry(unfinished(uid)).await
    }

    /// The backups that have their names.
    pub(super) async fn backups(&self) -> Result<Vec<VmUid>> {
        self.run(|this| {
            let names = match this.machine()? {
                Some(machine) => machine.names()?,
                None => Vec::new(),
            };
            let uids = names.iter().filter_map(|name| name.parse().ok());
            Ok(uids.collect())
        })
        .await
    }

    /// Takes the name of a backup away that is to be removed.
    pub(super) async fn hide(&self, uid: VmUid) -> Result<()> {
        self.run(move |this| {
            let machine = this.made_machine()?;
            machine.remove(&removed(uid))?;
            machine.rename(&uid.to_string(), &removed(uid))?;
            machine.sync()
        })
        .await
    }

    /// Whether a backup is being removed.
    pub(super) async fn is_hidden(&self, uid: VmUid) -> Result<bool> {
        self.run(move |this| this.has_entry(&removed(uid))).await
    }

    /// Gives a backup that was to be removed its name again.
    pub(super) async fn show(&self, uid: VmUid) -> Result<()> {
        self.run(move |this| {
            let machine = this.made_machine()?;
            machine.rename(&removed(uid), &uid.to_string())?;
            machine.sync()
        })
        .await
    }

    /// Removes a backup that has its name no more.
    pub(super) async fn erase(&self, uid: VmUid) -> Result<()> {
        self.removed_entry(removed(uid)).await
    }

    /// The text of a manifest, which may be longer than one can be; none: there is no such backup.
    pub(super) async fn manifest(&self, uid: VmUid) -> Result<Option<Vec<u8>>> {
        self.run(move |this| {
            let Some(directory) = this.backup(uid)? else {
                return Ok(None);
            };
            let mut text = Vec::new();
            // Without one it is no manifest.
            if let Some(file) = directory.read(MANIFEST)? {
                let read = file.take(LONGEST + 1).read_to_end(&mut text);
                read.map_err(files::failed("read", &this.shown(uid, MANIFEST)))?;
            }
            Ok(Some(text))
        })
        .await
    }

    /// The length of a file of a backup; none: there is no such file.
    pub(super) async fn length(&self, uid: VmUid, name: String) -> Result<Option<u64>> {
        self.run(move |this| {
            let Some(opened) = this.open(uid, &name)? else {
                return Ok(None);
            };
            let is = opened.file.metadata();
            let is = is.map_err(files::failed("look at", &opened.path))?;
            Ok(Some(is.len()))
        })
        .await
    }

    /// Reads a file of a backup, of so many bytes at most, and writes it to a file of the node where there is one; none:
    /// there is no such file.
    pub(super) async fn get(
        &self,
        uid: VmUid,
        name: String,
        most: u64,
        to: Option<Named>,
        step: Step<'_>,
    ) -> Result<Option<Copied>> {
        // Last: nothing but the copy is waited for while it is open.
        let opened = self.run(move |this| this.open(uid, &name)).await?;
        match opened {
            Some(from) => {
                let copied = self.copy(Copying::new(from, to, most), step).await?;
                Ok(Some(copied))
            }
            None => Ok(None),
        }
    }

    async fn copy(&self, mut copying: Copying, step: Step<'_>) -> Result<Copied> {
        loop {
            let worked = self.run(move |_| {
                let bytes = copying.step()?;
                Ok((copying, bytes))
            });
            let (rest, bytes) = worked.await?;
            copying = rest;
            let Some(bytes) = bytes else {
                return self.run(move |_| copying.end()).await;
            };
            step(bytes);
        }
    }

    async fn removed_entry(&self, name: String) -> Result<()> {
        self.run(move |this| {
            let Some(machine) = this.machine()? else {
                return Ok(());
            };
            machine.remove(&name)?;
            machine.sync()
        })
        .await
    }

    /// The directory of the machine; none: it has no backup. Blocks, as all below.
    fn machine(&self) -> Result<Option<Directory>> {
        let root = self.root.open()?;
        root.find(&self.vm.to_string())
    }

    /// The same, made where there is none.
    fn made_machine(&self) -> Result<Directory> {
        let root = self.root.open()?;
        let name = self.vm.to_string();
        if let Some(machine) = root.find(&name)? {
            return Ok(machine);
        }
        let machine = root.make(&name)?;
        root.sync()?;
        Ok(machine)
    }

    fn has_entry(&self, name: &str) -> Result<bool> {
        match self.machine()? {
            Some(machine) => Ok(machine.find(name)?.is_some()),
            None => Ok(false),
        }
    }

    fn backup(&self, uid: VmUid) -> Result<Option<Directory>> {
        match self.machine()? {
            Some(machine) => machine.find(&uid.to_string()),
            None => Ok(None),
        }
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

    fn open(&self, uid: VmUid, name: &str) -> Result<Option<Named>> {
        let file = match self.backup(uid)? {
            Some(directory) => directory.read(name)?,
            None => None,
        };
        let path = self.shown(uid, name);
        Ok(file.map(|file| Named { file, path }))
    }

    fn open_pair(&self, uid: VmUid, original: Original, name: &str) -> Result<Copying> {
        let path = original.path;
        let file = File::open(&path).map_err(files::failed("open", &path))?;
        let from = Named { file, path };
        let file = self.begun(uid)?.create(name)?;
        let path = self.shown(uid, name);
        Ok(Copying::new(from, Some(Named { file, path }), u64::MAX))
    }

    /// The file of a backup, for people.
    fn shown(&self, backup: VmUid, file: &str) -> PathBuf {
        let machine = self.root.path().join(self.vm.to_string());
        machine.join(backup.to_string()).join(Path::new(file))
    }
}

/// The names of a backup that is not complete.
pub(super) fn unfinished(backup: VmUid) -> String {
    format!(".new-{backup}")
}

pub(super) fn removed(backup: VmUid) -> String {
    format!(".old-{backup}")
}

/// Whether a name is that of something that an attempt to write a backup has left.
fn is_left(name: &str) -> bool {
    let uid = name.strip_prefix(".new-");
    uid.is_some_and(|uid| uid.parse::<VmUid>().is_ok())
}
