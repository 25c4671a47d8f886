//! The holder of a disk: one machine at a time.
//!
//! Invariant: the record names the holder before the file does, and until after it; a holder
//! releases it after the domain gone. The layers of a disk that has no holder belong to no machine's user, which
//! the next machine may have.
//! Failure: a file that cannot be written gives the disk back.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{getegid, geteuid};
use podspec::{ContainerId, VmUid};
use rustix::fs::OFlags;

use super::Disks;
use super::error::{Error, Result};
use super::model::{Disk, Phase};
use crate::files;
use crate::images::{self, Reference};

/// The extended attribute in which libvirt counts the machines that have a file.
const LIBVIRT_COUNT: &str = "trusted.libvirt.security.ref_dac";

impl Disks {
    /// The disk, if a machine can boot from it that names its image in one of these ways, or that
    /// names none: a disk that is ready needs no image in the store but its base, which is pinned.
    pub fn usable(&self, vm: VmUid, images: &[&str]) -> Result<Arc<Disk>> {
        let disk = self.known(vm)?;
        let doing = match disk.phase {
            Phase::Making => Some("made"),
            Phase::Deleting => Some("removed"),
            Phase::Ready | Phase::Layered | Phase::Pulled => {
                self.is_reserved(vm).then_some("copied")
            }
        };
        if let Some(doing) = doing {
            // The next attempt to start the machine finds the disk free, unless a client copies it.
            self.ask_to_yield(vm);
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
            self.ask_to_yield(vm);
            let doing = "copied";
            return Err(Error::Busy { vm, doing });
        }
        let given = self.records.change(&vm, |disk| {
            let free = disk.holder.as_ref().is_none_or(|h| h == container);
            disk.holder = Some(container.clone());
            free && disk.phase.is_complete()
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
        self.take_layers_back(vm).await;
        let taken = self.records.change(&vm, |disk| {
            let held = disk.holder.as_ref() == Some(container);
            disk.holder = None;
            held
        });
        taken.await?;
        Ok(())
    }

    /// Takes the layers of a disk back from the user of a machine that has ended: libvirt takes back the one that
    /// the machine wrote to, as it knows that, and gives all of them to the user of the next machine.
    async fn take_layers_back(&self, vm: VmUid) {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        let new = layers.and_then(|layers| layers.change());
        let new = new.map(|change| change.layer);
        let all = layers.into_iter().flat_map(|layers| layers.numbers());
        let files = all.chain(new).flat_map(|layer| self.names(vm, layer));
        // libvirt gives memory to the machine that resumes from it, and takes it back unless it is killed meanwhile.
        let memories = layers.into_iter().flat_map(|layers| layers.memories());
        let memories = memories.map(|uid| self.snapshot_memory(vm, uid));
        let saved = [self.memory_file(vm), self.unfinished_memory(vm)];
        let store = self.store_file(vm);
        let files: Vec<_> = files.chain(memories).chain(saved).chain([store]).collect();
        let take_back = move || {
            for path in files {
                if let Err(error) = take_back(&path) {
                    let path = path.display();
                    tracing::warn!(%vm, %path, %error, "layer not taken back from the user of its machine");
                }
            }
        };
        // One that panics has logged it.
        let _ = tokio::task::spawn_blocking(take_back).await;
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

/// Gives a file to the user of this process, if it is root.
pub(super) fn take_back(path: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let mut options = File::options();
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let options = options.read(true).custom_flags(flags.cast_signed());
    let file = match options.open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    fchown(&file, Some(geteuid().as_raw()), Some(getegid().as_raw()))?;
    // libvirt counts the machines that have a file. One that was killed while it switched a machine to another
    // file has counted one too many, and would refuse the file to any other user. Most files have no count.
    let _ = rustix::fs::fremovexattr(&file, LIBVIRT_COUNT);
    Ok(())
}
