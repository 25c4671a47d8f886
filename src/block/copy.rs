//! Prepares a device: inspects it, and writes the image when that is due.
//!
//! Invariant: marked as being written and synced, written, synced, marked as whole and synced, in
//! this order. The device is open exclusively meanwhile, also in the program that writes: a copy
//! that outlives the daemon keeps the next one away. One thread at a time works on a device, also
//! when its caller has left, and to close it.
//! Failure: the mark "being written" stays, and the next attempt begins again. A device that does
//! not answer is an error after a deadline.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nix::libc::{EBUSY, O_EXCL};
use podspec::ContainerId;

use super::Blocks;
use super::error::{Error, Result};
use super::marker::{Marker, OFFSET};
use super::model::{DesiredContent, Extent, Number};
use super::plan::{self, Content, Plan};
use crate::disk::qemu_img::{Base, Part};
use crate::files;
use crate::foreign::Open;
use crate::images::{Digest, Image};

/// Part of a copy after which the log has a line, in percent.
const STEP: u8 = 10;

impl Blocks {
    /// Makes a device that the container holds bootable, as the desired content requires. Returns
    /// the image whose content it has, where that is another one.
    pub async fn prepare(
        &self,
        device: Number,
        container: &ContainerId,
        desired: &DesiredContent,
    ) -> Result<Option<Digest>> {
        let node = self.node(device);
        let (file, size, content) = self.open_alone(device, false).await?;
        let plan = plan::decide(device, size, content, desired)?;
        if let Plan::Write(digest, extent) = plan
            && let Some(image) = &desired.image
        {
            let copy = self.copy(device, container, &file, digest, extent, image);
            copy.await?;
        }
        let (extent, other) = match plan {
            Plan::Boot(extent) | Plan::Write(_, extent) => (extent, None),
            Plan::BootOther(there, extent) => (extent, Some(there)),
        };
        self.record(device, extent).await?;
        tracing::info!(container = %container, %device, node = %node.display(), offset = extent.offset, size = extent.size, "block device prepared");
        Ok(other)
    }

    /// Takes all of a device that the container has, as it is.
    pub async fn prepare_whole(&self, device: Number, read_only: bool) -> Result<()> {
        let held = self.records.get(&device);
        if held.is_some_and(|held| !held.readers.is_empty() && held.extent.is_some()) {
            return Ok(());
        }
        let (_, size, _) = self.open_alone(device, read_only).await?;
        self.record(device, plan::whole(size)).await
    }

    async fn record(&self, device: Number, extent: Extent) -> Result<()> {
        let record = |held: &mut super::Held| {
            held.extent = Some(extent);
            true
        };
        self.records.change(&device, record).await?;
        Ok(())
    }

    async fn open_alone(
        &self,
        device: Number,
        read_only: bool,
    ) -> Result<(Open<File>, u64, Content)> {
        let node = self.node(device);
        let path = node.clone();
        let look = move || {
            let mut options = OpenOptions::new();
            let mut file = options
                .read(true)
                .write(!read_only)
                .custom_flags(O_EXCL)
                .open(&path)?;
            let size = file.seek(SeekFrom::End(0))?;
            let content = inspect(&file, size)?;
            Ok::<_, std::io::Error>((file, size, content))
        };
        let looked = self.foreign.look(&device.owner(), look).await?;
        let (file, size, content) = looked.map_err(|e| match e.kind() {
            _ if e.raw_os_error() == Some(EBUSY) => Error::Busy(device),
            ErrorKind::PermissionDenied => Error::NoDev(self.root.clone()),
            _ => files::failed("open the device", &node)(e).into(),
        })?;
        Ok((self.foreign.keep(&device.owner(), file), size, content))
    }

    async fn mark(&self, device: Number, file: &Open<File>, marker: Marker) -> Result<()> {
        let write = move |file: &File| {
            let block = marker.block().unwrap_or_default();
            file.write_all_at(&block, 0)?;
            file.sync_all()
        };
        let marked = file.run(write).await?;
        Ok(marked.map_err(files::failed("write", &self.node(device)))?)
    }

    async fn copy(
        &self,
        device: Number,
        container: &ContainerId,
        file: &Open<File>,
        digest: Digest,
        extent: Extent,
        image: &Image,
    ) -> Result<()> {
        let node = self.node(device);
        let failed = |e| files::failed("write", &node)(e);
        self.mark(device, file, Marker::Writing(digest)).await?;
        faultpoint::point("vm.block.begun");
        let claim = file.duplicate().map_err(failed)?;
        tracing::info!(container = %container, %device, image = %digest, bytes = image.virtual_size, "image copy to a block device started");
        let mut reported = 0;
        let progress = |percent: u8| {
            if percent >= reported + STEP {
                reported = percent / STEP * STEP;
                tracing::info!(
                    container = %container,
                    %device,
                    percent,
                    "image copy to a block device in progress"
                );
            }
        };
        let base = Base {
            path: &image.path,
            format: image.format,
        };
        let part = Part {
            path: &node,
            offset: extent.offset,
            size: extent.size,
        };
        let size = image.virtual_size;
        let written = self.qemu_img.write(part, base, size, claim, progress);
        written.await?;
        faultpoint::point("vm.block.written");
        let synced = file.run(File::sync_all).await?;
        synced.map_err(failed)?;
        self.mark(device, file, Marker::Whole(digest)).await?;
        faultpoint::point("vm.block.whole");
        Ok(())
    }
}

/// What is on a device. Tables and labels of all kinds are at one of its ends.
fn inspect(file: &File, size: u64) -> std::io::Result<Content> {
    let end = size.min(OFFSET);
    let head = read(file, 0, end)?;
    if let Some(marker) = Marker::read(&head) {
        return Ok(Content::Marked(marker));
    }
    let tail = read(file, size - end, end)?;
    let is_blank = head.iter().chain(&tail).all(|byte| *byte == 0);
    Ok(if is_blank {
        Content::Blank
    } else {
        Content::Foreign
    })
}

fn read(file: &File, from: u64, count: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(0)];
    file.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
}
