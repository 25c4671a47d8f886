//! Opens the files of a machine's disks for its emulator.
//!
//! Invariant: files are opened and checked for this start; whether another emulator has one open is
//! decided by QEMU's locks of the file, on this node and, where the file system has locks, on others.
//! Failure: [`Error`] before any call to libvirt.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::FileDisk;
use super::error::{Error, Result};
use super::place::io;
use super::prepare::look;
use crate::foreign::Open;
use crate::platform::Platform;
use crate::vm::disks::serial;
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource};
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::users::Owner;

/// A disk, with two descriptors if QEMU may write it, the one for reading first, and else with one.
#[derive(Debug, Serialize)]
pub(in crate::vm) struct WireDisk {
    /// The file that libvirt names in its place.
    pub(in crate::vm) path: PathBuf,
    pub(in crate::vm) read_only: bool,
}

impl<P: Platform> Containers<P> {
    /// Opens the files of a machine's disks. The directory of the machine's sockets is there.
    pub(in crate::vm) async fn open_file_disks(
        &self,
        row: &Container,
    ) -> Result<(Vec<WireDisk>, Vec<Open<Vec<File>>>)> {
        let disks = &row.spec.file_disks;
        let mut opened = Vec::new();
        let mut described = Vec::new();
        for (index, disk) in disks.iter().enumerate() {
            let place = self.place(disk).await?;
            let missing = Error::Missing(disk.shown());
            let write = !disk.read_only;
            let files = look(&place, disk, move |place| place.find_all(write));
            let files = files.await?.ok_or(missing)?;
            opened.push(place.keep(files));
            let path = self.paths.disk_stand_in(&row.id, index);
            let owner = self.owner(row);
            let disk = disk.clone();
            let read_only = disk.read_only;
            let made = path.clone();
            let prepare = move || stand_in(&made, owner);
            let prepared = tokio::task::spawn_blocking(prepare).await;
            let prepared = prepared.unwrap_or_else(|e| Err(std::io::Error::other(e)));
            prepared.map_err(io(&disk, "describe to libvirt"))?;
            described.push(WireDisk { path, read_only });
        }
        Ok((described, opened))
    }

    /// The root disk as the domain has it, if it is a file of a volume.
    pub(in crate::vm) fn root_in_file(&self, row: &Container) -> Option<Disk> {
        let mut all = row.spec.file_disks.iter().enumerate();
        let (index, disk) = all.find(|(_, disk)| disk.is_root())?;
        Some(self.file_disk(row, index, disk))
    }

    /// The other disks as the domain has them.
    pub(in crate::vm) fn further_files(&self, row: &Container) -> impl Iterator<Item = Disk> {
        let all = row.spec.file_disks.iter().enumerate();
        let further = all.filter(|(_, disk)| !disk.is_root());
        further.map(|(index, disk)| self.file_disk(row, index, disk))
    }

    fn file_disk(&self, row: &Container, index: usize, disk: &FileDisk) -> Disk {
        Disk {
            device: DiskDevice::Virtio,
            source: DiskSource::File(self.paths.disk_stand_in(&row.id, index)),
            format: match disk.format {
                crate::images::Format::Raw => DiskFormat::Raw,
                crate::images::Format::Qcow2 => DiskFormat::Qcow2,
            },
            discard: true,
            read_only: disk.read_only,
            serial: serial(&row.spec.disk_paths(), &disk.path),
        }
    }
}

fn stand_in(path: &Path, Owner { uid, gid }: Owner) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?;
    chown(path, Some(uid), Some(gid))
}
