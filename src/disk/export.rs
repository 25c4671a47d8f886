//! Disks that are read, to be copied for a client.
//!
//! Invariant: no machine gets a disk while a [`Reservation`] of it exists, and none has it when the
//! reservation is made, nor has a QEMU without a record. A reservation is in memory alone: it ends with who made it, but not before
//! the program has given the disk back, and with this process. The deletion of a disk does not wait
//! for it.
//! Failure: [`Error`]; a copy that was not completed is removed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use podspec::VmUid;

use super::Disks;
use super::chain::MERGED;
use super::error::{Error, Result};
use super::model::Phase;
use super::qemu_img::{Access, Base, Source};
use crate::files;

/// Keeps machines from a disk until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    vm: VmUid,
    all: Arc<Mutex<BTreeSet<VmUid>>>,
}

/// What a disk was when it was looked at: another one, or one that was written to, has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds of the last write.
    written: (i64, i64),
}

impl Disks {
    /// Keeps machines from a disk that none has.
    pub async fn reserve(&self, vm: VmUid) -> Result<Reservation> {
        if self.known(vm)?.linked {
            // As before each start of a machine.
            self.settle_promotion(vm).await?;
        }
        let _turn = self.turns.lock(&vm).await;
        let disk = self.known(vm)?;
        let busy = |doing| Err(Error::Busy { vm, doing });
        match disk.phase {
            Phase::Making => return busy("made"),
            Phase::Deleting => return busy("removed"),
            Phase::Ready | Phase::Layered | Phase::Pulled => {}
        }
        if let Some(holder) = disk.holder.clone() {
            return Err(Error::Running { vm, holder });
        }
        if disk.has_memory() || disk.is_being_saved() {
            return Err(Error::Suspended(vm));
        }
        if disk.linked && self.base(vm).is_none() {
            return Err(Error::ImageLost(vm));
        }
        // A domain that outlived its record has it, too.
        for file in self.writable_files(vm).await? {
            let written = self.qemu_img.is_written(&file).await;
            if written.map_err(files::failed("look at", &file))? {
                return busy("written to by another program");
            }
        }
        if self.is_reserved(vm) {
            return busy("copied");
        }
        self.settle_change(vm).await?;
        let reserved = self.reserved.lock();
        if !reserved.unwrap_or_else(PoisonError::into_inner).insert(vm) {
            return busy("copied");
        }
        let reservation = Reservation {
            vm,
            all: Arc::clone(&self.reserved),
        };
        // A merge beside a machine that has ended meanwhile goes on.
        if self.has_claimed_layers(vm) {
            return busy(MERGED);
        }
        Ok(reservation)
    }

    /// Whether a disk is kept from machines.
    pub(super) fn is_reserved(&self, vm: VmUid) -> bool {
        let reserved = self.reserved.lock();
        let reserved = reserved.unwrap_or_else(PoisonError::into_inner);
        reserved.contains(&vm)
    }

    /// The version of a reserved disk.
    pub async fn version(&self, reserved: &Reservation) -> Result<Version> {
        let path = self.file(reserved.vm);
        let is = tokio::fs::metadata(&path).await;
        let is = is.map_err(files::failed("look at", &path))?;
        Ok(Version {
            inode: is.ino(),
            bytes: is.len(),
            written: (is.mtime(), is.mtime_nsec()),
        })
    }

    /// Writes all that a reserved disk has, with the image under it, to a qcow2 file that stands
    /// alone. `progress` gets percents. A caller that drops the future removes the file.
    pub async fn copy_out(
        &self,
        reserved: &Arc<Reservation>,
        target: &Path,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let vm = reserved.vm;
        let disk = self.known(vm)?;
        let image = self.base(vm).filter(|_| disk.linked);
        let base = image.as_ref().map(|image| Base {
            path: &image.path,
            format: image.format,
        });
        let files = self.files(vm);
        let source = Source {
            disk: &files.active,
            below: &files.below,
            base,
            size: disk.virtual_bytes,
            access: Access::Lent,
            guard: Arc::<Reservation>::clone(reserved),
        };
        Ok(self.qemu_img.copy_out(source, target, progress).await?)
    }

    /// Waits until a disk is being removed, or is gone.
    pub async fn removal(&self, vm: VmUid) {
        let mut changes = self.changes();
        loop {
            match self.get(vm) {
                Some(disk) if disk.phase != Phase::Deleting => {}
                _ => return,
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let all = self.all.lock();
        all.unwrap_or_else(PoisonError::into_inner).remove(&self.vm);
    }
}
