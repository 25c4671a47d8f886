//! Makes the disk of a machine as a copy of another machine's disk.
//!
//! ```text
//! record    files of the new disk       source
//! making    -                           -
//! making    root.new, a part of it      snapshot held, or disk reserved
//! making    root.qcow2, complete        -
//! ready     root.qcow2                  -
//! ```
//!
//! Invariant: the new disk stands alone: it needs neither its source nor the image of that. It has its name only when
//! all of it is written and on the device. What an earlier attempt has left is discarded, whichever source that had. Both
//! disks are of machines of one namespace, as their records say; a disk never has less room than its source.
//! Failure: [`Error`]; the caller [undoes](Disks::undo) what was begun. The source is as it was.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use podspec::VmUid;

use super::Disks;
use super::chain::HeldSnapshot;
use super::error::{Error, Result};
use super::export::Reservation;
use super::layers::SnapshotUid;
use super::make::{make_folder, name_for_good};
use super::model::{Disk, Phase};
use crate::files;

/// The clone that a request specifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredClone {
    /// The machine that gets the disk.
    pub vm: VmUid,
    /// `namespace/name` of that machine.
    pub name: String,
    /// The disk that is copied.
    pub source: VmUid,
    /// The snapshot of it that is copied; none: the disk as it is, which no machine may have.
    pub snapshot: Option<SnapshotUid>,
    /// Size in bytes that the guest is to see; 0: that of the source.
    pub size: u64,
}

/// What keeps the source as it is while it is copied.
enum Held {
    Snapshot(Arc<HeldSnapshot>),
    Disk(Arc<Reservation>),
}

/// The virtual sizes of two disks.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) source: u64,
    pub(super) clone: u64,
}

/// The image that the source of a copy was made from.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) image: &'a str,
    pub(super) digest: &'a str,
}

impl Bytes {
    /// Those of a source of `least` bytes and of a copy of as many as requested; 0: those of the source.
    pub(super) const fn new(vm: VmUid, least: u64, requested: u64) -> Result<Self> {
        if requested != 0 && requested < least {
            return Err(Error::SmallerThanSource {
                vm,
                least,
                requested,
            });
        }
        Ok(Self {
            source: least,
            clone: if requested > least { requested } else { least },
        })
    }
}

impl Disks {
    /// Creates a disk as a copy, or finds it complete. A caller that drops the future, or gets an error, must
    /// [undo](Self::undo) it. `progress` gets percents.
    pub async fn clone_disk(
        &self,
        desired: &DesiredClone,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let vm = desired.vm;
        if !self.begin_copy(vm, &desired.name).await? {
            return Ok(());
        }
        faultpoint::point("node.clone.recorded");
        let held = self.hold_source(desired).await?;
        let source = self.known(desired.source)?;
        let file = match &held {
            Held::Snapshot(held) => held.files().first().cloned(),
            Held::Disk(_) => Some(self.file(desired.source)),
        };
        let least = match &held {
            Held::Snapshot(held) => held.virtual_bytes(),
            Held::Disk(_) => source.virtual_bytes,
        };
        if let Some(file) = file {
            // Before hours of copying.
            self.check_size(desired.source, &file, least).await?;
        }
        let bytes = Bytes::new(vm, least, desired.size)?;
        let origin = Origin {
            image: &source.image,
            digest: &source.digest,
        };
        self.describe_copy(vm, origin, bytes).await?;
        self.write_clone(vm, held, bytes, progress).await?;
        let copy = self.unfinished_clone(vm);
        self.check_size(desired.source, &copy, least).await?;
        self.complete_clone(vm, bytes).await?;
        faultpoint::point("node.clone.renamed");
        self.end_copy(vm).await?;
        faultpoint::point("node.clone.ready");
        tracing::info!(%vm, source = %desired.source, "disk cloned");
        Ok(())
    }

    /// Records that a disk is made as a copy; false when it is complete. What an earlier attempt has left may be a part of
    /// another source, and nothing shows of which.
    pub(super) async fn begin_copy(&self, vm: VmUid, name: &str) -> Result<bool> {
        let making = making(vm, name);
        let (there, is_new) = self.insert(making.clone()).await?;
        match there.phase {
            Phase::Ready | Phase::Layered | Phase::Pulled => return Ok(false),
            Phase::Deleting => {
                let doing = "removed";
                return Err(Error::Busy { vm, doing });
            }
            Phase::Making if !is_new => {
                self.undo(vm).await?;
                self.insert(making).await?;
            }
            Phase::Making => {}
        }
        Ok(true)
    }

    /// Records what a copy comes from, and its size.
    pub(super) async fn describe_copy(
        &self,
        vm: VmUid,
        origin: Origin<'_>,
        bytes: Bytes,
    ) -> Result<()> {
        let described = self.records.change(&vm, |disk| {
            origin.image.clone_into(&mut disk.image);
            origin.digest.clone_into(&mut disk.digest);
            disk.virtual_bytes = bytes.clone;
            disk.phase == Phase::Making
        });
        let doing = "removed";
        described.await?.map(drop).ok_or(Error::Busy { vm, doing })
    }

    /// Records that a copy is complete.
    pub(super) async fn end_copy(&self, vm: VmUid) -> Result<()> {
        let completed = self.records.change(&vm, |disk| {
            let is_making = disk.phase == Phase::Making;
            disk.phase = Phase::Ready;
            is_making
        });
        let doing = "removed";
        completed.await?.map(drop).ok_or(Error::Busy { vm, doing })
    }

    /// Keeps the source as it is.
    async fn hold_source(&self, desired: &DesiredClone) -> Result<Held> {
        let source = desired.source;
        // A record is looked at before anything is held.
        check_namespace(desired, &*self.known(source)?)?;
        if let Some(snapshot) = desired.snapshot {
            let held = self.hold_snapshot(source, snapshot).await?;
            return Ok(Held::Snapshot(Arc::new(held)));
        }
        Ok(Held::Disk(self.reserve_layers(source).await?))
    }

    /// Writes the disk under another name. The source is free then.
    async fn write_clone(
        &self,
        vm: VmUid,
        held: Held,
        bytes: Bytes,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        make_folder(&self.folder(vm)).await?;
        let copy = self.unfinished_clone(vm);
        self.qemu_img.count_new(&copy, bytes.clone).await?;
        match held {
            Held::Snapshot(held) => self.copy_snapshot_out(&held, &copy, progress).await?,
            Held::Disk(reserved) => self.copy_out(&reserved, &copy, progress).await?,
        }
        faultpoint::point("node.clone.copied");
        Ok(())
    }

    /// Refuses a file of the source, or its copy, that has another size than the record of the source: what a disk may
    /// take is counted by records.
    pub(super) async fn check_size(&self, vm: VmUid, file: &Path, recorded: u64) -> Result<()> {
        let has = self.qemu_img.size_in_header(file).await;
        let has = has.map_err(files::failed("read the header of", file))?;
        if has == recorded {
            return Ok(());
        }
        Err(Error::SizeDiffers { vm, has, recorded })
    }

    /// Makes a copy as large as it is to be, and gives it its name.
    pub(super) async fn complete_clone(&self, vm: VmUid, bytes: Bytes) -> Result<()> {
        let unfinished = self.unfinished_clone(vm);
        if bytes.clone > bytes.source {
            self.qemu_img.grow(&unfinished, bytes.clone).await?;
        }
        faultpoint::point("node.clone.grown");
        let folder = self.folder(vm);
        let disk = self.layer_file(vm, 0);
        let to = disk.clone();
        let named = tokio::task::spawn_blocking(move || name_for_good(&unfinished, &to, &folder));
        let named = named
            .await
            .unwrap_or_else(|e| Err(std::io::Error::other(e)));
        Ok(named.map_err(files::failed("name", &disk))?)
    }

    pub(super) fn unfinished_clone(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("root.new")
    }
}

/// The record of a copy that is being made.
fn making(vm: VmUid, name: &str) -> Disk {
    Disk {
        vm,
        name: name.to_owned(),
        phase: Phase::Making,
        image: String::new(),
        digest: String::new(),
        virtual_bytes: 0,
        linked: false,
        holder: None,
        memory: None,
        layers: None,
        next_layer: None,
        generation: None,
    }
}

/// A tenant's machine gets no disk of another tenant, whatever the request says.
fn check_namespace(desired: &DesiredClone, source: &Disk) -> Result<()> {
    let namespace = |name: &str| name.split_once('/').map(|parts| parts.0.to_owned());
    let own = namespace(&desired.name).filter(|own| !own.is_empty());
    if own.is_some() && own == namespace(&source.name) {
        return Ok(());
    }
    Err(Error::OtherNamespace {
        vm: desired.source,
        had: source.name.clone(),
        requested: desired.name.clone(),
    })
}

#[cfg(test)]
mod tests;
