//! What the machine of a start is made of.
//!
//! Invariant: only the row, the records of disks and images, and the settings decide; nothing is made here.
//! Failure: [`Error`] for a disk or an image that no longer exists.

use podspec::FastDeploy;
use tapmanager::wire::Permit;
use uuid::Uuid;

use crate::images::Format;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::disks::overlay::fast_deploy;
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource, DomainSpec, Uefi};
use crate::vm::error::{Error, Result};
use crate::vm::host::accelerator::Accelerator;
use crate::vm::lifecycle::describe::{Parts, describe};
use crate::vm::model::Container;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    pub(super) fn domain(
        &self,
        row: &Container,
        sandbox: &Sandbox,
        (accelerator, permit, (generation, uefi)): (
            Accelerator,
            Permit,
            (Option<Uuid>, Option<Uefi>),
        ),
        saved: Option<&str>,
    ) -> Result<DomainSpec> {
        let further = row.spec.blocks.iter().filter(|disk| !disk.is_root());
        let disks = further
            .map(|disk| self.block_disk(row, disk))
            .chain(self.further_files(row).map(Ok))
            .chain(self.seed_disk(row).map(Ok));
        let parts = Parts {
            settings: &self.settings,
            paths: &self.paths,
            accelerator,
            permit,
            saved,
            root: self.root(row, sandbox)?,
            disks: disks.collect::<Result<_>>()?,
            layers: row.vm().map(|vm| self.parts.disks.layers_directory(vm)),
            disk_bytes: self.disk_bytes(row),
            uefi,
            generation,
            owner: row.spec.user.map(|_| self.owner(row)),
        };
        Ok(describe(row, sandbox, parts))
    }

    fn root(&self, row: &Container, sandbox: &Sandbox) -> Result<Disk> {
        if let Some(disk) = row.root_block() {
            return self.block_disk(row, disk);
        }
        if let Some(disk) = self.root_in_file(row) {
            return Ok(disk);
        }
        if let Some(vm) = row.vm() {
            return self.root_of(vm);
        }
        let image = self.parts.images.pinned(sandbox.id.as_str());
        let image = image.ok_or_else(|| Error::ImageLost(sandbox.id.clone()))?;
        let path = self.paths.root_disk(&sandbox.id);
        let source = match fast_deploy(sandbox)? {
            FastDeploy::Direct => DiskSource::File(path),
            FastDeploy::Linked => DiskSource::Overlay {
                path,
                base: image.path,
                base_format: match image.format {
                    Format::Qcow2 => DiskFormat::Qcow2,
                    Format::Raw => DiskFormat::Raw,
                },
            },
        };
        Ok(Disk {
            device: DiskDevice::Virtio,
            source,
            format: DiskFormat::Qcow2,
            discard: true,
            read_only: false,
            serial: None,
        })
    }
}
