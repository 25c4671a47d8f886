//! Disks of virtual machines: they exist before the first pod and after the last one.
//!
//! ```text
//!            make                    delete
//!  (none) ─────────► Making ──► Ready ─────► Deleting ─► (none)
//!                      │ undo     │  ▲
//!                      └──► (none)└──┘ lock, unlock, promote; memory: Writing ─► Whole ─► Resumed ─► (none)
//!            first snapshot: Ready ─► Layered ─► Ready: after the last one
//!            promotion while the guest runs: Ready ─► Pulled ─► Ready
//! ```
//!
//! Invariant: a disk has its name only when all of it is written; the image under it is pinned from
//! before the disk is made until after it no longer exists; one container has it at most. Memory
//! that a guest has continued from is never used again.
//! Failure: [`Error`]; a step cut short is finished by its repetition, or undone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use podspec::VmUid;

mod backup;
mod chain;
mod clone;
mod error;
mod export;
mod generation;
mod grow;
mod holder;
mod joined;
mod layers;
mod make;
pub mod manifest;
mod memory;
mod model;
mod promote;
mod pull;
pub mod qemu_img;
mod remove;
mod restore;
mod snapshots;
mod unreadable;

pub use backup::{BackupFiles, Yielding};
pub use chain::{ClaimedLayers, HeldSnapshot};
pub use clone::DesiredClone;
pub use error::{Error, Result};
pub use export::{Reservation, Version};
pub use layers::{Change, Layers, Snapshot, SnapshotMemory, SnapshotUid, Step};
pub use make::DesiredDisk;
pub use model::{Disk, Memory, MemoryPhase, Phase, SavedNic, TakenSnapshot};
pub use restore::DesiredRestore;
pub use snapshots::{Files, MergeInUse};
pub use unreadable::UnreadableDisk;

use crate::images::{self, Images, Pinned};
use crate::locks::Locks;
use crate::metadata::{self, Aside, Db, RecordStore};
use qemu_img::QemuImg;
use tokio::sync::watch;

/// The name of the variable store of UEFI beside a root disk.
pub const STORE: &str = "uefi.fd";
/// Beginning of the names under which disks pin their images.
const OWNER: &str = "vm-";

/// The disks of this node.
#[derive(Debug)]
pub struct Disks {
    records: RecordStore<Disk>,
    images: Arc<Images>,
    qemu_img: QemuImg,
    root: PathBuf,
    /// Held while a record is made, while files or a pin without one are removed, and while a
    /// machine or a reader gets the disk.
    turns: Locks<VmUid>,
    /// Disks without a record that were logged.
    unrecorded: Mutex<BTreeSet<VmUid>>,
    /// Disks that are being read, which no machine gets.
    reserved: Arc<Mutex<BTreeSet<VmUid>>>,
    /// Layers that are read, merged or removed.
    uses: chain::LayerUses,
    manifests: Arc<manifest::Manifests>,
    /// Merges that end for machines.
    yields: backup::Yields,
    /// Whether files below `root` can have the same blocks, once that was looked at.
    shares_blocks: OnceLock<bool>,
}

impl Disks {
    /// Reads what is recorded; `root` is the directory of all disks, which must exist.
    pub async fn open(
        db: Db,
        images: Arc<Images>,
        qemu_img: QemuImg,
        root: PathBuf,
    ) -> metadata::Result<Self> {
        Ok(Self {
            records: RecordStore::load(db).await?,
            images,
            qemu_img,
            root,
            turns: Locks::default(),
            unrecorded: Mutex::default(),
            reserved: Arc::default(),
            uses: chain::LayerUses::default(),
            manifests: Arc::default(),
            yields: backup::Yields::default(),
            shares_blocks: OnceLock::new(),
        })
    }

    /// What writes disks on this node.
    pub const fn qemu_img(&self) -> &QemuImg {
        &self.qemu_img
    }

    /// Whether copies of disks can have the blocks of their source; `None`: not known. Blocks.
    pub fn copies_share_blocks(&self) -> Option<bool> {
        let known = self.shares_blocks.get().copied();
        known.or_else(|| {
            let found = qemu_img::shared_in(&self.root)?;
            Some(*self.shares_blocks.get_or_init(|| found))
        })
    }

    /// The directory below a state directory.
    pub fn directory_of(state: &Path) -> PathBuf {
        state.join("disks")
    }

    /// What is known of a machine's disk.
    pub fn get(&self, vm: VmUid) -> Option<Arc<Disk>> {
        self.records.get(&vm)
    }

    /// The disk of a machine that has one.
    pub fn known(&self, vm: VmUid) -> Result<Arc<Disk>> {
        self.records.readable(&vm)?.ok_or(Error::Missing(vm))
    }

    /// All disks with a record that can be read; see [`Self::unreadable`] for the others.
    pub fn all(&self) -> Vec<Arc<Disk>> {
        self.records.all()
    }

    /// The records of disks that cannot be read.
    pub const fn aside(&self) -> &Aside {
        self.records.aside()
    }

    /// Changes whenever a disk does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.records.changes()
    }

    /// The file of a disk that the guest writes to.
    pub fn file(&self, vm: VmUid) -> PathBuf {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        self.layer_file(vm, layers.map_or(0, Layers::active))
    }

    /// The seed image that machines on a disk find beside it.
    pub fn seed_file(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("seed.iso")
    }

    /// The variable store of machines on a disk, which they find beside it.
    pub fn store_file(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join(STORE)
    }

    /// The file of a disk below all of its layers.
    pub fn first_file(&self, vm: VmUid) -> PathBuf {
        self.layer_file(vm, 0)
    }

    /// The image under a disk that is an overlay.
    pub fn base(&self, vm: VmUid) -> Option<Pinned> {
        self.images.pinned(&owner(vm))
    }

    /// Whether an image is pinned under this name because a disk needs it, or may need it.
    pub fn needs_pin(&self, owner: &str) -> bool {
        let Some(vm) = vm_of(owner) else {
            return false;
        };
        match self.get(vm) {
            Some(disk) => disk.linked || !disk.phase.is_complete(),
            None => self.may_be_aside(vm),
        }
    }

    /// Whether the record of this disk may be one that cannot be read.
    fn may_be_aside(&self, vm: VmUid) -> bool {
        self.aside().may_have(&vm.to_string())
    }

    /// Ends the pin of an owner that is no disk, or that [needs](Self::needs_pin) none. Returns
    /// whether it did.
    pub async fn collect_pin(&self, owner: &str) -> images::Result<bool> {
        let _turn = match vm_of(owner) {
            Some(vm) => Some(self.turns.lock(&vm).await),
            None => None,
        };
        if self.needs_pin(owner) {
            return Ok(false);
        }
        self.images.unpin(owner).await?;
        Ok(true)
    }

    fn folder(&self, vm: VmUid) -> PathBuf {
        self.root.join(vm.to_string())
    }
}

/// The name of a seed image until all of it is written.
pub fn unfinished(seed: &Path) -> PathBuf {
    seed.with_extension("new")
}

/// The name under which a disk pins its image.
pub(crate) fn owner(vm: VmUid) -> String {
    format!("{OWNER}{vm}")
}

/// The disk that pins its image under this name.
fn vm_of(owner: &str) -> Option<VmUid> {
    owner.strip_prefix(OWNER)?.parse().ok()
}

#[cfg(test)]
mod tests;
