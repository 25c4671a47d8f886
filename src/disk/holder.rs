//! The holder of a disk: one machine at a time.
//!
//! Invariant: the record names the holder before the file does, and until after it; a holder
//! releases it after the domain gone.
//! Failure: a file that cannot be written gives the disk back.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use podspec::{ContainerId, VmUid};

use super::Disks;
use super::error::{Error, Result};
use super::model::{Disk, Phase};
use crate::files;
use crate::images::{self, Reference};

impl Disks {
    /// The disk, if a machine can boot from it that names its image in one of these ways, or that
    /// names none: a disk that is ready needs no image in the store but its base, which is pinned.
    pub fn usable(&self, vm: VmUid, images: &[&str]) -> Result<Arc<Disk>> {
        let disk = self.known(vm)?;
        let doing = match disk.phase {
            Phase::Making => Some("made"),
            Phase::Deleting => Some("removed"),
            Phase::Ready => self.is_reserved(vm).then_some("copied"),
        };
        if let Some(doing) = doing {
            return Err(Error::Busy { vm, doing });
        }
        let is_meant = |image: &&str| images::is_none(image) || self.is_image_of(&disk, image);
        if !images.iter().any(is_meant) {
            let shown = images.iter().rev().find(|image| !image.is_empty());
            return Err(Error::OtherImage {
                vm,
                made: disk.image.clone(),
                wanted: shown.unwrap_or(&"none").chars().take(256).collect(),
            });
        }
        if disk.linked && self.base(vm).is_none() {
            return Err(Error::ImageLost(vm));
        }
        Ok(disk)
    }

    /// Whether a name means the image that the disk was made from: the same name, or the same
    /// content now.
    fn is_image_of(&self, disk: &Disk, image: &str) -> bool {
        let named = Reference::parse(image).ok();
        let same_name = named.is_some() && named == Reference::parse(&disk.image).ok();
        let found = self.images.find(image);
        let digest = match named {
            Some(Reference::Id(digest)) => Some(digest),
            _ => found.map(|image| image.digest),
        };
        same_name || digest.is_some_and(|digest| digest.to_string() == disk.digest)
    }

    /// Gives the disk to a container. Again for the same container: success.
    pub async fn take(&self, vm: VmUid, container: &ContainerId) -> Result<()> {
        let path = self.file(vm);
        if !tokio::fs::try_exists(&path).await.unwrap_or(false) {
            return Err(Error::Lost { vm, path });
        }
        let _turn = self.turns.lock(&vm).await;
        if self.is_reserved(vm) {
            let doing = "copied";
            return Err(Error::Busy { vm, doing });
        }
        let given = self.records.change(&vm, |disk| {
            let free = disk.holder.as_ref().is_none_or(|h| h == container);
            disk.holder = Some(container.clone());
            free && disk.phase == Phase::Ready
        });
        if given.await?.is_none() {
            return Err(match self.get(vm).map(|disk| disk.holder.clone()) {
                Some(Some(holder)) => Error::InUse { vm, holder },
                Some(None) => Error::Busy {
                    vm,
                    doing: "removed",
                },
                None => Error::Missing(vm),
            });
        }
        faultpoint::point("node.disk.taken");
        let lock = self.lock_file(vm);
        let text = format!("vm={vm}\ncontainer={container}\n");
        if let Err(e) = tokio::fs::write(&lock, text).await {
            self.give_back(vm, container).await?;
            return Err(files::failed("write", &lock)(e).into());
        }
        Ok(())
    }

    /// Takes the disk back from a container whose domain no longer exists; success when it has not
    /// got it.
    pub async fn give_back(&self, vm: VmUid, container: &ContainerId) -> Result<()> {
        if !self.is_held_by(vm, container) {
            return Ok(());
        }
        let lock = self.lock_file(vm);
        match tokio::fs::remove_file(&lock).await {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(files::failed("remove", &lock)(e).into());
            }
            _ => {}
        }
        faultpoint::point("node.disk.unlocked");
        let taken = self.records.change(&vm, |disk| {
            let held = disk.holder.as_ref() == Some(container);
            disk.holder = None;
            held
        });
        taken.await?;
        Ok(())
    }

    /// Whether a container has the disk.
    pub fn is_held_by(&self, vm: VmUid, container: &ContainerId) -> bool {
        let disk = self.get(vm);
        disk.is_some_and(|disk| disk.holder.as_ref() == Some(container))
    }

    /// For people, and for programs that do not ask us.
    fn lock_file(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join("lock")
    }
}
