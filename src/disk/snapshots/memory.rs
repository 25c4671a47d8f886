//! The memory of guests, in files beside the layers of their disks.
//!
//! ```text
//! record                 memory/UID.save           seed of the guest
//! UID in progress        -                         -
//! UID in progress        libvirt writes it         memory/UID.seed
//! UID, memory whole      on the device             memory/UID.seed
//! ```
//!
//! A revert gives the machine a second name of the file (`memory.save`), as a suspension leaves one: the next start
//! resumes from it, once, and removes that name alone. The snapshot keeps its own for further reverts.
//!
//! Invariant: a file is recorded before it is made, and is on the device before its memory counts as whole; what no
//! record names is removed. The directory is of the daemon's user alone. libvirt begins the switch of the disk when all of
//! the memory is written and the guest stands still, so that with a switch both are of one moment; without one the memory
//! is worth nothing.
//! Failure: [`Error`]; a snapshot without whole memory is none, and a repetition of a revert begins again.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use podspec::VmUid;

use super::files::bytes_of;
use crate::disk::error::{Error, Result};
use crate::disk::holder::take_back;
use crate::disk::layers::{Change, Layers, Snapshot, SnapshotMemory, SnapshotUid, Step};
use crate::disk::model::{Memory, MemoryPhase};
use crate::disk::{Disks, unfinished};
use crate::space::Claim;
use crate::{clock, files};

/// The directory of memory beside the first layer.
const DIRECTORY: &str = "memory";

/// Largest image that a guest found its data on.
const SEED: u64 = 64 << 20;

/// The least that a file of memory may have beside the memory, in bytes: the state of devices, and a description.
const DEVICES: u64 = 128 << 20;

impl SnapshotMemory {
    /// Memory of so many bytes that is about to be written. Half of it may be written twice: the guest changes it
    /// meanwhile.
    pub const fn about_to_be_written(bytes: u64) -> Self {
        Self {
            bytes: bytes.saturating_add(bytes / 2).saturating_add(DEVICES),
            whole: false,
            paused: false,
            nics: Vec::new(),
        }
    }
}

impl Disks {
    fn memory_directory(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join(DIRECTORY)
    }

    /// The file of the memory of a snapshot.
    pub fn snapshot_memory(&self, vm: VmUid, uid: SnapshotUid) -> PathBuf {
        self.memory_directory(vm).join(format!("{uid}.save"))
    }

    fn snapshot_seed(&self, vm: VmUid, uid: SnapshotUid) -> PathBuf {
        self.memory_directory(vm).join(format!("{uid}.seed"))
    }

    /// The memory that the snapshot in progress is to have.
    pub fn memory_in_progress(&self, vm: VmUid, change: Change) -> Option<SnapshotMemory> {
        let disk = self.get(vm)?;
        let memory = disk.layers.as_ref()?.memory_in_progress(change.layer);
        memory.cloned()
    }

    /// Claims space for the memory of the snapshot in progress, until the claim is dropped; the change is dropped without
    /// any.
    pub(crate) async fn claim_memory(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        change: Change,
    ) -> Result<Option<Claim>> {
        let Some(memory) = self.memory_in_progress(vm, change) else {
            return Ok(None);
        };
        let file = self.snapshot_memory(vm, uid);
        match self.qemu_img.claim(&file, memory.bytes).await {
            Ok(claim) => Ok(Some(claim)),
            Err(error) => {
                self.abandon_change(vm, change.layer).await?;
                Err(error.into())
            }
        }
    }

    /// Records that a snapshot of a machine that runs is being taken, with its memory, and prepares that.
    pub async fn begin_snapshot_with_memory(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        memory: SnapshotMemory,
    ) -> Result<Change> {
        let snapshot = Snapshot {
            uid,
            created_at: clock::now(),
            quiesced: false,
            running: true,
        };
        let freezes = false;
        let step = Step::Take { snapshot, freezes };
        let change = self.begin_change(vm, step, Some(memory)).await?;
        let directory = self.memory_directory(vm);
        let from = self.seed_file(vm);
        let to = self.snapshot_seed(vm, uid);
        let shown = directory.clone();
        let prepare = move || prepare(&directory, &from, &to);
        if let Err(error) = blocking(prepare).await {
            self.abandon_change(vm, change.layer).await?;
            return Err(files::failed("prepare", &shown)(error).into());
        }
        Ok(change)
    }

    /// Records that the memory of the snapshot in progress is whole, once it is on the device. The emulator
    /// writes to the new layer by then.
    pub async fn complete_memory(&self, vm: VmUid, change: Change) -> Result<()> {
        let Step::Take { snapshot, .. } = change.step else {
            return Ok(());
        };
        if self.memory_in_progress(vm, change).is_none() {
            return Ok(());
        }
        let file = self.snapshot_memory(vm, snapshot.uid);
        let seed = self.snapshot_seed(vm, snapshot.uid);
        let path = file.clone();
        let synced = blocking(move || sync_if_whole(&path, &seed)).await;
        let Some(bytes) = synced.map_err(files::failed("write", &file))? else {
            return Ok(());
        };
        let completed = self.records.change(&vm, |disk| {
            let layers = disk.layers.as_mut();
            layers.is_some_and(|layers| layers.complete_memory(change.layer, bytes))
        });
        let doing = "changed, or removed";
        completed.await?.ok_or(Error::Busy { vm, doing })?;
        faultpoint::point("node.snapshot.memory");
        Ok(())
    }

    /// Makes a disk that no machine has what it was at a snapshot, and lets the next start resume from the memory of that;
    /// success when that is so.
    pub async fn revert_with_memory(&self, vm: VmUid, uid: SnapshotUid) -> Result<()> {
        let disk = self.known(vm)?;
        let is_done =
            disk.has_memory() && disk.memory.as_ref().and_then(|m| m.snapshot) == Some(uid);
        if is_done {
            return Ok(());
        }
        let absent = Error::NoSnapshotMemory { vm, snapshot: uid };
        let layers = disk.layers.as_ref();
        let memory = layers.and_then(|layers| layers.memory_of(uid)).cloned();
        let memory = memory.ok_or(absent)?;
        self.revert_to(vm, uid, Some(memory)).await
    }

    /// Gives the machine the memory of a snapshot, as a suspension leaves it.
    pub(super) async fn place_memory(
        &self,
        vm: VmUid,
        uid: SnapshotUid,
        memory: SnapshotMemory,
    ) -> Result<Memory> {
        let from = self.snapshot_memory(vm, uid);
        let place = Place {
            memory: Names {
                kept: from.clone(),
                given: self.memory_file(vm),
            },
            unfinished: self.unfinished_memory(vm),
            seed: Names {
                kept: self.snapshot_seed(vm, uid),
                given: self.seed_file(vm),
            },
            folder: self.folder(vm),
        };
        let placed = blocking(move || place.carry_out()).await;
        if !placed.map_err(files::failed("link", &from))? {
            return Err(Error::NoSnapshotMemory { vm, snapshot: uid });
        }
        faultpoint::point("node.snapshot.placed");
        Ok(Memory {
            phase: MemoryPhase::Whole,
            paused: memory.paused,
            nics: memory.nics,
            snapshot: Some(uid),
        })
    }

    /// Removes what a revert that was cut short left of memory that no record names.
    pub(super) async fn remove_stray_memory(&self, vm: VmUid) -> Result<()> {
        let file = self.memory_file(vm);
        if !tokio::fs::try_exists(&file).await.unwrap_or(false) {
            return Ok(());
        }
        // No machine gets the disk, and no revert begins, meanwhile.
        let _turn = self.turns.lock(&vm).await;
        let disk = self.get(vm);
        let is_unknown = disk.is_some_and(|disk| disk.memory.is_none());
        if !is_unknown || self.is_reserved(vm) {
            return Ok(());
        }
        let removed = tokio::fs::remove_file(&file).await;
        Ok(removed.map_err(files::failed("remove", &file))?)
    }

    /// Removes the files of memory that no record names.
    pub(super) async fn tidy_memories(&self, vm: VmUid) -> Result<()> {
        let directory = self.memory_directory(vm);
        let failed = || files::failed("look through", &directory);
        let mut entries = match tokio::fs::read_dir(&directory).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed())?,
        };
        let mut is_kept = false;
        while let Some(entry) = entries.next_entry().await.map_err(failed())? {
            let path = entry.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let uid = stem.and_then(|stem| stem.parse::<SnapshotUid>().ok());
            // The file first, then the record: memory is recorded before it has a file.
            if uid.is_some_and(|uid| self.is_memory_recorded(vm, uid)) {
                is_kept = true;
                continue;
            }
            match tokio::fs::remove_file(&path).await {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(files::failed("remove", &path)(e).into());
                }
                _ => {}
            }
        }
        if !is_kept && !self.has_recorded_memory(vm) {
            // One that has a file is of a snapshot that has begun meanwhile.
            let _ = tokio::fs::remove_dir(&directory).await;
        }
        Ok(())
    }

    fn is_memory_recorded(&self, vm: VmUid, uid: SnapshotUid) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(|layers| layers.has_memory_of(uid))
    }

    /// It is recorded before its directory is made.
    fn has_recorded_memory(&self, vm: VmUid) -> bool {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        layers.is_some_and(|layers| layers.memories().next().is_some())
    }

    /// Bytes that the memory of all snapshots takes on the node. Blocks for a moment.
    pub(super) fn memory_allocated(&self, vm: VmUid) -> u64 {
        let entries = fs::read_dir(self.memory_directory(vm));
        let entries = entries.into_iter().flatten().flatten();
        let bytes = entries.map(|entry| bytes_of(&entry.path()));
        bytes.fold(0, u64::saturating_add)
    }

    /// Length of the memory of a snapshot, and what it takes on the node. Blocks for a moment.
    pub(super) fn memory_sizes(&self, vm: VmUid, layers: &Layers, uid: SnapshotUid) -> Sizes {
        let Some(memory) = layers.memory_of(uid) else {
            return Sizes::default();
        };
        let files = [self.snapshot_memory(vm, uid), self.snapshot_seed(vm, uid)];
        let used = files.iter().map(|file| bytes_of(file));
        Sizes {
            bytes: memory.bytes,
            used: used.fold(0, u64::saturating_add),
        }
    }
}

/// What memory takes, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) bytes: u64,
    pub(super) used: u64,
}

/// A file that a machine gets from a snapshot.
struct Names {
    /// That of the snapshot.
    kept: PathBuf,
    /// That of the machine.
    given: PathBuf,
}

/// What a machine gets from a snapshot.
struct Place {
    memory: Names,
    unfinished: PathBuf,
    seed: Names,
    folder: PathBuf,
}

impl Place {
    /// False when the memory is not whole. Blocks.
    fn carry_out(self) -> io::Result<bool> {
        if !libvirt::is_saved_memory(&self.memory.kept) {
            return Ok(false);
        }
        // A libvirtd that was killed while a machine resumed from it has left it to the user of that.
        take_back(&self.memory.kept)?;
        remove(&self.unfinished)?;
        remove(&self.memory.given)?;
        remove(&self.seed.given)?;
        if self.seed.kept.try_exists()? {
            let new = unfinished(&self.seed.given);
            remove(&new)?;
            fs::copy(&self.seed.kept, &new)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &self.seed.given)?;
        }
        fs::hard_link(&self.memory.kept, &self.memory.given)?;
        File::open(&self.folder)?.sync_all()?;
        Ok(true)
    }
}

/// Makes the directory, and keeps the image that the guest found its data on: it has that as a disk. Blocks.
fn prepare(directory: &Path, from: &Path, to: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    if let Some(folder) = directory.parent() {
        File::open(folder)?.sync_all()?;
    }
    let length = match fs::symlink_metadata(from) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        metadata => metadata?.len(),
    };
    if length > SEED {
        return Err(io::Error::other(
            "the image with the data for the guest is too large",
        ));
    }
    remove(to)?;
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o600))
}

/// The length of the files, once they are on the device; `None` when the memory is not whole. Blocks.
fn sync_if_whole(memory: &Path, seed: &Path) -> io::Result<Option<u64>> {
    if !libvirt::is_saved_memory(memory) {
        return Ok(None);
    }
    let mut bytes = 0_u64;
    for path in [memory, seed] {
        let file = match File::open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound && path == seed => continue,
            file => file?,
        };
        file.sync_all()?;
        bytes = bytes.saturating_add(file.metadata()?.len());
    }
    if let Some(directory) = memory.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(Some(bytes))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(io::Error::other(e)))
}
