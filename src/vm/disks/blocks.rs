//! Containers with devices of the node as disks, the root disk among them.
//!
//! Invariant: a container takes its devices after its row is there, and gives them back when its
//! domain no longer exists; the root disk is prepared before the container is CREATED.
//! Failure: [`crate::vm::Error::Block`]; nothing is left then but a device whose copy is begun
//! again.

use std::path::Path;

use podspec::{Role, RootContent, SandboxId};
use sha2::{Digest as _, Sha256};

use super::seed::SERIAL as SEED;
use crate::block::{self, DesiredContent};
use crate::images::{Digest, Image};
use crate::platform::Platform;
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource};
use crate::vm::error::Result;
use crate::vm::model::{BlockDisk, Container, ContainerConfig};
use crate::vm::service::Containers;

/// Longest serial number of a virtio disk.
const SERIAL: usize = 20;
/// Hexadecimal digits that distinguish two names.
const HASH: usize = 8;

impl<P: Platform> Containers<P> {
    /// The disks that the devices of a request are. Devices that are no disks are of no use to a
    /// machine. A stop of the sandbox ends the look at them.
    pub(in crate::vm) async fn wanted_blocks(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        role: Role,
    ) -> Result<Vec<BlockDisk>> {
        let mut disks = Vec::new();
        if role != Role::Machine {
            return Ok(disks);
        }
        let stop = self.stops.watch(sandbox);
        for wanted in &config.devices {
            let path = Path::new(&wanted.host_path);
            let device = tokio::select! {
                device = self.parts.blocks.identify(path) => device?,
                () = stop.requested() => return Err(block::Error::Stopped(path.to_owned()).into()),
            };
            let Some(device) = device else {
                if wanted.container_path == "/" {
                    return Err(block::Error::NotBlock(path.to_owned()).into());
                }
                tracing::warn!(
                    device = %path.display(),
                    "device is not a block device: not attached to the machine"
                );
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

    /// Gives the devices to a container that is being created, and prepares all but the root disk,
    /// whose content may be another one's.
    pub(super) async fn take_blocks(&self, row: &Container) -> Result<()> {
        let blocks = &self.parts.blocks;
        for disk in &row.spec.blocks {
            for holder in blocks.holders_of(disk.device) {
                self.finish_end(&holder).await?;
            }
            let owner = self.owner(row);
            let take = blocks.take(disk.device, &row.id, disk.read_only, owner);
            take.await?;
            if !disk.is_root() {
                blocks.prepare_whole(disk.device, disk.read_only).await?;
            }
        }
        Ok(())
    }

    /// Prepares the device that is the root disk, if there is one. Returns what the pod's author should
    /// know of it.
    pub(super) async fn prepare_root_block(
        &self,
        row: &Container,
        image: Option<&Image>,
        content: RootContent,
    ) -> Result<Option<String>> {
        let Some(disk) = row.root_block() else {
            return Ok(None);
        };
        let desired = DesiredContent {
            image: image.cloned(),
            is_kept: self.vm_of(row).is_some(),
            replaces: content == RootContent::Replace,
        };
        let stop = self.stops.watch(&row.sandbox);
        let blocks = &self.parts.blocks;
        let there = tokio::select! {
            prepared = blocks.prepare(disk.device, &row.id, &desired) => prepared?,
            () = stop.requested() => return Err(block::Error::Cancelled(disk.device).into()),
        };
        Ok(there.map(|there| other_content(there, row)))
    }

    /// A device as the domain has it.
    pub(in crate::vm) fn block_disk(&self, row: &Container, disk: &BlockDisk) -> Result<Disk> {
        let blocks = &self.parts.blocks;
        let extent = blocks.extent(disk.device, &row.id);
        let extent = extent.ok_or(block::Error::Lost(disk.device))?;
        Ok(Disk {
            device: DiskDevice::Virtio,
            source: DiskSource::Block {
                path: blocks.node(disk.device),
                part: (extent.offset > 0).then_some(extent),
            },
            format: DiskFormat::Raw,
            discard: true,
            read_only: disk.read_only,
            serial: serial(&row.spec.disk_paths(), &disk.path),
        })
    }
}

/// The event of a machine that boots what is on its claim.
fn other_content(there: Digest, row: &Container) -> String {
    format!(
        "the root claim has the content of image {there} and boots as it is, without the pod's image \
         {}: to have that written over it, annotate a new pod with vmlet.dev/root-content: replace",
        row.spec.image_digest
    )
}

/// What the guest finds a device by, as `/dev/disk/by-id/virtio-…`: the end of the path that the
/// pod gave it. When an earlier device of the machine has that already, a part of it and of the
/// whole path's SHA-256. None for the root disk.
pub(in crate::vm) fn serial(all: &[&str], path: &str) -> Option<String> {
    let short = plain(path).filter(|_| path != "/")?;
    let mut earlier = all.iter().take_while(|other| **other != path);
    let is_taken = short == SEED || earlier.any(|other| plain(other).as_ref() == Some(&short));
    if !is_taken {
        return Some(short);
    }
    let digest = Digest::from_bytes(Sha256::digest(path).into()).hex();
    let name: String = short.chars().take(SERIAL - HASH - 1).collect();
    Some(format!("{name}-{}", &digest[..HASH]))
}

fn plain(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_.+-".contains(*c);
    let serial: String = name.chars().filter(is_plain).take(SERIAL).collect();
    Some(serial).filter(|serial| !serial.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serials(paths: &[&str]) -> Vec<Option<String>> {
        paths.iter().map(|path| serial(paths, path)).collect()
    }

    #[test]
    fn a_guest_finds_a_device_by_the_end_of_its_path() {
        let found = serials(&["/", "/dev/data", "/dev/<ü>", "/dev/database-of-the-shop-1"]);
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        assert_eq!(
            found,
            [None, Some("data"), None, Some("database-of-the-shop")]
        );
    }

    #[test]
    fn two_devices_of_a_machine_have_two_names() {
        let paths = [
            "/a/data",
            "/b/data",
            "/dev/database-of-the-shop-1",
            "/dev/database-of-the-shop-2",
            "/dev/vmlet-seed",
        ];
        let found: Vec<_> = serials(&paths).into_iter().flatten().collect();
        assert_eq!(found[0], "data");
        assert_eq!(found[1], "data-af42d697");
        assert!(
            found[3].starts_with("database-of-") && found[3].len() == 20,
            "{found:?}"
        );
        assert!(found[4].starts_with("vmlet-seed-"), "{found:?}");
        let different: std::collections::BTreeSet<_> = found.iter().collect();
        assert_eq!(different.len(), paths.len(), "{found:?}");
    }
}
