//! Creates a disk from an image.
//!
//! Invariant: recorded, image pinned, written under another name, synced, renamed, declared ready,
//! in this order; a disk that is ready is never touched.
//! Failure: the caller undoes what was begun, or repeats it: each step is taken up where it was
//! left.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use podspec::VmUid;

use super::error::{Error, Result};
use super::model::{Disk, Phase};
use super::qemu_img::Base;
use super::{Disks, owner};
use crate::files;
use crate::images::{self, Image, Locator, ServerTls};

/// Part of the progress that bringing the image is, in percent.
const BRINGING: u8 = 60;

/// The disk that a request specifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredDisk {
    /// The machine that it belongs to.
    pub vm: VmUid,
    /// `namespace/name` of the machine, for people.
    pub name: String,
    /// The image, by the name that a pod would give it.
    pub image: String,
    /// The URL that this name refers to, when it is made of one.
    pub url: Option<String>,
    /// Least size in bytes that the guest is to see.
    pub size: u64,
    /// Whether it may be based on the image's file.
    pub linked: bool,
}

impl Disks {
    /// Creates a disk, or finds it complete. A caller that drops the future must [undo](Self::undo)
    /// it. `progress` gets percents.
    pub async fn make(
        &self,
        desired: &DesiredDisk,
        progress: impl Fn(u8) + Send + Sync,
    ) -> Result<()> {
        self.make_with(desired, None, progress).await
    }

    /// As [`Disks::make`], with certificates for the server of the image.
    pub async fn make_with(
        &self,
        desired: &DesiredDisk,
        tls: Option<&ServerTls>,
        progress: impl Fn(u8) + Send + Sync,
    ) -> Result<()> {
        let record = Disk {
            vm: desired.vm,
            name: desired.name.clone(),
            phase: Phase::Making,
            image: desired.image.clone(),
            digest: String::new(),
            virtual_bytes: 0,
            linked: desired.linked,
            holder: None,
            memory: None,
            layers: None,
            next_layer: None,
            generation: None,
        };
        let (there, new) = self.insert(record.clone()).await?;
        match there.phase {
            Phase::Ready | Phase::Layered | Phase::Pulled => return Ok(()),
            Phase::Deleting => {
                let vm = desired.vm;
                let doing = "removed";
                return Err(Error::Busy { vm, doing });
            }
            // What an earlier attempt wanted counts no more.
            Phase::Making if !new && !is_same(&there, &record) => {
                self.undo(desired.vm).await?;
                self.insert(record).await?;
            }
            Phase::Making => {}
        }
        faultpoint::point("node.provision.recorded");
        let image = self.bring(desired, tls, &progress).await?;
        let digest = image.digest.to_string();
        self.records
            .change(&desired.vm, |disk| {
                disk.digest = digest;
                disk.virtual_bytes = desired.size.max(image.virtual_size);
                true
            })
            .await?;
        faultpoint::point("node.provision.pinned");
        // A tenth of a copy is as good as a hundredth.
        let reported =
            |percent: u8| progress(BRINGING + percent.min(100) / 10 * ((100 - BRINGING) / 10));
        self.write(desired, &image, reported).await?;
        faultpoint::point("node.provision.renamed");
        self.records
            .change(&desired.vm, |disk| {
                disk.phase = Phase::Ready;
                true
            })
            .await?;
        faultpoint::point("node.provision.ready");
        if !desired.linked {
            self.let_image_go(desired.vm).await?;
        }
        progress(100);
        tracing::info!(vm = %desired.vm, image = desired.image, linked = desired.linked, "disk created");
        Ok(())
    }

    /// Records a disk, unless there is one; returns what is recorded, and whether it is new.
    pub(super) async fn insert(&self, record: Disk) -> Result<(Arc<Disk>, bool)> {
        let _turn = self.turns.lock(&record.vm).await;
        self.check_unrecorded(record.vm).await?;
        Ok(self.records.insert(record).await?)
    }

    /// Refuses to take a file for ours that was there before its record.
    async fn check_unrecorded(&self, vm: VmUid) -> Result<()> {
        let path = self.file(vm);
        let there = tokio::fs::try_exists(&path).await;
        if there.map_err(files::failed("look for", &path))? && self.get(vm).is_none() {
            return Err(Error::Unrecorded { vm, path });
        }
        Ok(())
    }

    /// The image, pulled if it is not here, and pinned. Another machine may have brought another one by
    /// this name, with other certificates, since the name was looked up: only the pinned one counts.
    async fn bring(
        &self,
        desired: &DesiredDisk,
        tls: Option<&ServerTls>,
        progress: &(impl Fn(u8) + Sync),
    ) -> Result<Image> {
        let failed = |source| Error::Image {
            image: desired.image.clone(),
            source,
        };
        let locator = Locator::new(&desired.image, desired.url.as_deref()).with_tls(tls);
        loop {
            match self.images.pin(&owner(desired.vm), &desired.image).await {
                Err(images::Error::Absent { .. }) => {}
                Ok(image) if !self.images.is_of(image.digest, locator) => {
                    self.let_image_go(desired.vm).await?;
                }
                pinned => return pinned.map_err(failed),
            }
            let part = |percent: u8| {
                let of_all = u16::from(percent.min(100)) * u16::from(BRINGING) / 100;
                progress(u8::try_from(of_all).unwrap_or(BRINGING));
            };
            let pulled = self.images.pull_reporting(locator, part).await;
            pulled.map_err(failed)?;
        }
    }

    async fn write(
        &self,
        desired: &DesiredDisk,
        image: &Image,
        progress: impl FnMut(u8) + Send,
    ) -> Result<()> {
        let folder = self.folder(desired.vm);
        let disk = self.file(desired.vm);
        if tokio::fs::try_exists(&disk)
            .await
            .map_err(files::failed("look for", &disk))?
        {
            // An earlier attempt got as far as the name, which a disk has only when it is whole.
            return Ok(());
        }
        make_folder(&folder).await?;
        let unfinished = folder.join("root.new");
        let base = Base {
            path: &image.path,
            format: image.format,
        };
        let size = desired.size.max(image.virtual_size);
        if desired.linked {
            self.qemu_img.overlay(&unfinished, base, size).await?;
        } else {
            self.qemu_img
                .copy(&unfinished, base, size, progress)
                .await?;
        }
        faultpoint::point("node.provision.written");
        let from = unfinished.clone();
        let to = disk.clone();
        let named = tokio::task::spawn_blocking(move || name_for_good(&from, &to, &folder));
        let named = named
            .await
            .unwrap_or_else(|e| Err(std::io::Error::other(e)));
        Ok(named.map_err(files::failed("name", &disk))?)
    }

    /// Ends the pin of a disk that needs its image no more.
    pub(super) async fn let_image_go(&self, vm: VmUid) -> Result<()> {
        let unpinned = self.images.unpin(&owner(vm)).await;
        unpinned.map_err(|source| Error::Image {
            image: owner(vm),
            source,
        })
    }
}

/// Whether both have the same desired state, so that one may continue where the other stopped.
fn is_same(there: &Disk, wanted: &Disk) -> bool {
    there.image == wanted.image && there.linked == wanted.linked
}

/// Makes the directory of a disk. QEMU's user may traverse it, no user may list it.
pub(super) async fn make_folder(folder: &Path) -> Result<()> {
    let made = tokio::fs::create_dir_all(folder).await;
    made.map_err(files::failed("make", folder))?;
    let opened = tokio::fs::set_permissions(folder, Permissions::from_mode(0o711)).await;
    Ok(opened.map_err(files::failed("open", folder))?)
}

/// Gives a file its name once all of it is on the disk. libvirt hands it to QEMU's user while that
/// runs.
pub(super) fn name_for_good(from: &Path, to: &Path, folder: &Path) -> std::io::Result<()> {
    let file = File::open(from)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.sync_all()?;
    service::files::place(from, to)?;
    // The folder may be as new as the file.
    match folder.parent() {
        Some(root) => File::open(root)?.sync_all(),
        None => Ok(()),
    }
}
