//! Disks into which emulators copy the images under them while their guests run.
//!
//! ```text
//! record     header             image under it, and its pin
//! ready      names the image    yes
//! pulled     names the image    yes     the emulator copies, or was stopped
//! pulled     names none         yes     it has copied all; whether that is on the device is not known
//! ready      names none         no      all of it is on the device
//! ```
//!
//! Invariant: with its image under it a pulled disk shows the right content in each of these states: an emulator
//! takes nothing out of a disk that hides the image. So it keeps the image, in domains and for programs, until its own
//! tables prove that it has all of it ([`super::qemu_img::QemuImg::missing`]), and its header, which the emulator
//! writes before the rest is on the device, is no witness. A disk that loses this state as an overlay has a header
//! that says so: that of an emulator that was stopped, or one that is written again when none has the disk. Nothing
//! begins a snapshot of a pulled disk.
//! Failure: [`Error`]; the record stays, and the disk keeps its image. Daemons before this one cannot read the record,
//! and leave the disk alone.

use podspec::{ContainerId, VmUid};

use super::Disks;
use super::error::{Error, Result};
use super::model::{Disk, Phase};
use super::qemu_img::{Access, Base};
use crate::files;
use crate::space::Claim;

impl Disks {
    /// Claims space for what the machine that runs on a disk is about to copy into it. Refuses a disk of which the
    /// proof could not be read then: nothing else would change it until the machine is off.
    pub(crate) async fn claim_pull(&self, vm: VmUid) -> Result<Claim> {
        let disk = self.known(vm)?;
        if disk.phase == Phase::Layered {
            return Err(Error::HasSnapshots(vm));
        }
        let missing = self.missing(&disk, Access::Shared).await;
        let missing = missing.map_err(|error| match error {
            Error::Write(source) => Error::NotProvable { vm, source },
            other => other,
        })?;
        let file = self.file(vm);
        let claimed = self.qemu_img.claim_pull(&file, missing, disk.virtual_bytes);
        Ok(claimed.await?)
    }

    /// Refuses when nothing is free beside the reserve where a disk is.
    pub(crate) async fn check_room(&self, vm: VmUid) -> Result<()> {
        Ok(self.qemu_img.check_room(&self.file(vm)).await?)
    }

    /// Records that the machine of a container copies the image under its disk into it; success when that is
    /// recorded.
    pub async fn begin_pull(&self, vm: VmUid, holder: &ContainerId) -> Result<()> {
        let is_begun =
            |disk: &Disk| disk.phase == Phase::Pulled && disk.holder.as_ref() == Some(holder);
        let disk = self.known(vm)?;
        if disk.phase == Phase::Layered {
            return Err(Error::HasSnapshots(vm));
        }
        if is_begun(&disk) {
            return Ok(());
        }
        let begun = self.records.change(&vm, |disk| {
            let is_held = disk.holder.as_ref() == Some(holder);
            let is_free = disk.phase == Phase::Ready && disk.linked && disk.memory.is_none();
            if is_held && is_free {
                disk.phase = Phase::Pulled;
            }
            is_begun(disk)
        });
        let doing = "changed, suspended or removed";
        begun.await?.map(drop).ok_or(Error::Busy { vm, doing })
    }

    /// Whether what an emulator copies into a disk is not known.
    pub fn is_pulled(&self, vm: VmUid) -> bool {
        self.get(vm).is_some_and(|disk| disk.phase == Phase::Pulled)
    }

    /// Records what a disk has into which its machine copies nothing more, though it runs; returns whether it needs
    /// no image. One that has all in the emulator, and not on the device yet, stays as it is.
    pub async fn end_pull(&self, vm: VmUid, holder: &ContainerId) -> Result<bool> {
        let disk = self.known(vm)?;
        if disk.phase != Phase::Pulled {
            return Ok(disk.phase == Phase::Ready && !disk.linked);
        }
        if disk.holder.as_ref() != Some(holder) {
            return Ok(false);
        }
        if self.is_overlay(vm).await? {
            return self.record_linked(&disk).await.map(|()| false);
        }
        if !self.has_image(&disk, Access::Shared).await? {
            return Ok(false);
        }
        self.record_whole(&disk).await
    }

    /// Finds out what a disk has that no emulator has any more, before anything else uses it; returns whether it needs
    /// no image.
    pub async fn settle_pull(&self, vm: VmUid) -> Result<bool> {
        let _turn = self.turns.lock(&vm).await;
        let disk = self.known(vm)?;
        if disk.phase != Phase::Pulled {
            return Ok(disk.phase == Phase::Ready && !disk.linked);
        }
        let file = self.file(vm);
        let written = self.qemu_img.is_written(&file).await;
        if written.map_err(files::failed("look at", &file))? {
            // A domain that outlived its record, or a program that did.
            return Ok(false);
        }
        if !self.is_overlay(vm).await? {
            let proved = self.has_image(&disk, Access::Lent).await;
            let proved = proved.unwrap_or_else(|error| {
                // As without a proof: an overlay on its image shows the right content.
                let error = crate::one_line(&error);
                tracing::warn!(%vm, error, "pulled disk not settled yet");
                false
            });
            if proved {
                return self.record_whole(&disk).await;
            }
            let image = self.base(vm).ok_or(Error::ImageLost(vm))?;
            let base = Base {
                path: &image.path,
                format: image.format,
            };
            self.qemu_img.relink(&file, base).await?;
            tracing::info!(%vm, image = disk.image, "disk linked to its image again");
        }
        self.record_linked(&disk).await.map(|()| false)
    }

    /// Records a pulled disk as the overlay that its header says it is.
    async fn record_linked(&self, known: &Disk) -> Result<()> {
        let linked = self.records.change(&known.vm, |disk| {
            let is_same = disk.phase == known.phase && disk.holder == known.holder;
            disk.phase = Phase::Ready;
            is_same
        });
        linked.await?;
        Ok(())
    }

    /// Whether a disk has all of the image under it, on the device.
    async fn has_image(&self, disk: &Disk, access: Access) -> Result<bool> {
        Ok(self.missing(disk, access).await? == 0)
    }

    /// How many bytes of the image under a disk that does not have, at most.
    async fn missing(&self, disk: &Disk, access: Access) -> Result<u64> {
        let image = self.base(disk.vm).ok_or(Error::ImageLost(disk.vm))?;
        let base = Base {
            path: &image.path,
            format: image.format,
        };
        let file = self.file(disk.vm);
        Ok(self.qemu_img.missing(&file, base, access).await?)
    }
}

#[cfg(test)]
mod tests;
