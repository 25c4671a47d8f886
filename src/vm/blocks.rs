//! Containers with devices of the node as disks, the root disk among them.
//!
//! Invariant: a container takes its devices after its row is there, and gives them back when its domain is gone; the root
//! disk is prepared before the container is CREATED.
//! Failure: [`Error::Block`]; nothing is left then but a device whose copy is begun anew.

use std::path::Path;

use libvirt::Hypervisor;
use podspec::{Role, SandboxId};

use super::domain::{Disk, DiskFormat, DiskSource};
use super::error::Result;
use super::model::{BlockDisk, Container, ContainerConfig};
use super::service::Containers;
use super::state::Phase;
use crate::block::{self, Blocks, Wish};
use crate::images::Image;
use crate::sandbox::PodNetwork;

/// Longest serial number of a virtio disk.
const SERIAL: usize = 20;

impl<H: Hypervisor, N: PodNetwork> Containers<H, N> {
    /// The disks that the devices of a request are. Devices that are no disks are of no use to a machine.
    pub(super) async fn wanted_blocks(
        &self,
        config: &ContainerConfig,
        role: Role,
    ) -> Result<Vec<BlockDisk>> {
        let mut disks = Vec::new();
        if role == Role::Provision {
            return Ok(disks);
        }
        for wanted in &config.devices {
            let path = Path::new(&wanted.host_path);
            let Some(device) = Blocks::identify(path).await? else {
                if wanted.container_path == "/" {
                    return Err(block::Error::NotBlock(path.to_owned()).into());
                }
                tracing::warn!(device = %path.display(), "no block device: the machine does not get it");
                continue;
            };
            let disk = BlockDisk {
                device,
                path: wanted.container_path.clone(),
                read_only: !wanted.permissions.contains('w'),
            };
            if disk.is_root() && disk.read_only {
                return Err(block::Error::ReadOnly.into());
            }
            disks.push(disk);
        }
        Ok(disks)
    }

    /// Gives the devices to a container that is being created, and prepares them.
    pub(super) async fn take_blocks(&self, row: &Container, image: Option<&Image>) -> Result<()> {
        let blocks = &self.parts.blocks;
        for disk in &row.spec.blocks {
            if let Some(holder) = blocks.holder(disk.device) {
                self.finish_end(&holder).await?;
            }
            blocks.take(disk.device, &row.id).await?;
            if disk.is_root() {
                let wish = Wish {
                    image: image.cloned(),
                    is_kept: self.vm_of(row).is_some(),
                };
                blocks.prepare(disk.device, &row.id, &wish).await?;
            } else {
                blocks.prepare_whole(disk.device).await?;
            }
        }
        Ok(())
    }

    /// Ends the copies to devices in a sandbox that goes: nobody is to wait for them.
    pub(super) fn cancel_copies(&self, sandbox: &SandboxId) {
        for row in self.of_sandbox(sandbox) {
            if row.phase == Phase::Creating {
                self.parts.blocks.cancel(&row.id);
            }
        }
    }

    /// A device as the domain has it.
    pub(super) fn block_disk(&self, row: &Container, disk: &BlockDisk) -> Result<Disk> {
        let blocks = &self.parts.blocks;
        let extent = blocks.extent(disk.device, &row.id);
        let extent = extent.ok_or(block::Error::Lost(disk.device))?;
        Ok(Disk {
            source: DiskSource::Block {
                path: blocks.node(disk.device),
                part: (extent.offset > 0).then_some(extent),
            },
            format: DiskFormat::Raw,
            discard: true,
            read_only: disk.read_only,
            serial: serial(&disk.path),
        })
    }
}

/// The end of the path that the pod gave a device: the guest finds it as `/dev/disk/by-id/virtio-…`. None for the root disk.
fn serial(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_.+-".contains(*c);
    let serial: String = name.chars().filter(is_plain).take(SERIAL).collect();
    Some(serial).filter(|serial| !serial.is_empty())
}

#[cfg(test)]
mod tests {
    use super::serial;

    #[test]
    fn a_guest_finds_a_device_by_the_end_of_its_path() {
        assert_eq!(serial("/dev/data").as_deref(), Some("data"));
        assert_eq!(serial("/"), None);
        assert_eq!(serial("/dev/<ü>"), None);
        let long = serial("/dev/database-of-the-shop-1").unwrap();
        assert_eq!(long, "database-of-the-shop");
    }
}
