//! Which files of volumes are disks of a container.
//!
//! Invariant: follows from the annotation and the mounts of the request; no file is looked at.
//! Failure: [`Error`] names the entry.

use podspec::{Annotations, FileFormat, Role, clean_path};

use super::FileDisk;
use super::error::Error;
use crate::images::Format;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::error::Result;
use crate::vm::lifecycle::request;
use crate::vm::model::{BlockDisk, ContainerConfig, Mount};
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// The files that are disks of a container that is a machine.
    pub(in crate::vm) fn wanted_file_disks(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Vec<FileDisk>> {
        let instance = request::instance(sandbox, config)?;
        if instance.role != Role::Machine {
            return Ok(Vec::new());
        }
        let disks = requested(sandbox, config)?;
        disks.iter().try_for_each(|disk| self.permitted(disk))?;
        if instance.vm.is_some() && disks.iter().any(FileDisk::is_root) {
            return Err(Error::TwoRoots.into());
        }
        Ok(disks)
    }

    /// Whether this node uses disks in this format: the header of a qcow2 file can name other files,
    /// and pods that have the volume can change it at any moment.
    pub(super) fn permitted(&self, disk: &FileDisk) -> Result<(), Error> {
        if disk.format == Format::Qcow2 && !self.settings.qcow2_file_disks {
            Err(Error::Qcow2Off(disk.shown()))
        } else {
            Ok(())
        }
    }

    /// Refuses the annotation of a pod whose containers are processes.
    pub(in crate::vm) fn refuse_file_disks(
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<()> {
        let annotations = request::annotations(sandbox, config);
        if Annotations::new(&annotations).file_disks()?.is_empty() {
            Ok(())
        } else {
            Err(Error::Process.into())
        }
    }
}

fn requested(sandbox: &Sandbox, config: &ContainerConfig) -> Result<Vec<FileDisk>> {
    let annotations = request::annotations(sandbox, config);
    let wanted = Annotations::new(&annotations).file_disks()?;
    let disks = wanted
        .into_iter()
        .map(|disk| file_disk(disk, &config.mounts));
    Ok(disks.collect::<Result<_, _>>()?)
}

fn file_disk(wanted: podspec::FileDisk, mounts: &[Mount]) -> Result<FileDisk, Error> {
    let is_meant = |mount: &&Mount| clean_path(&mount.container_path) == wanted.mount_path;
    let Some(mount) = mounts.iter().find(is_meant) else {
        return Err(Error::NoMount(wanted.mount_path));
    };
    let disk = FileDisk {
        mount: wanted.mount_path,
        directory: mount.host_path.clone(),
        file: wanted.file,
        format: match wanted.format {
            FileFormat::Raw => Format::Raw,
            FileFormat::Qcow2 => Format::Qcow2,
        },
        size: wanted.size,
        path: wanted.device_path,
        read_only: mount.readonly,
    };
    if disk.is_root() && disk.read_only {
        Err(Error::ReadOnlyRoot)
    } else {
        Ok(disk)
    }
}

/// Refuses a path that a device has, too.
pub(in crate::vm) fn check_paths(files: &[FileDisk], blocks: &[BlockDisk]) -> Result<(), Error> {
    let is_taken = |file: &&FileDisk| blocks.iter().any(|block| block.path == file.path);
    match files.iter().find(is_taken) {
        Some(file) => Err(Error::TwoDisks(file.path.clone())),
        None => Ok(()),
    }
}
