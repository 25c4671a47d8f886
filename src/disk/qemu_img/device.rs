//! Writes images to parts of devices.
//!
//! Invariant: the program gets the open device, and writes to the part alone, past the kernel's cache.
//! Failure: [`Failed`]; the part has a part of the image then.

use std::fs::File;
use std::path::Path;

use super::{Base, Failed, QemuImg, Time, path_of, run};
use crate::foreign::Open;

/// A part of a device, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The device.
    pub path: &'a Path,
    /// Where the part begins.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
}

impl QemuImg {
    /// Writes all of `base`, of `size` bytes, to a part of a device, past the kernel's cache.
    /// `device` is the open device, which stays open for as long as the program runs, even if it
    /// outlives this process.
    pub async fn write(
        &self,
        part: Part<'_>,
        base: Base<'_>,
        size: u64,
        device: Open<File>,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let written = async {
            let image = self.open_image(base.path).await?;
            let this = self.for_run()?;
            let disk = this.lend(&device).await?;
            let file = disk.inherited()?;
            let driver = if disk.is_device {
                "host_device"
            } else {
                "file"
            };
            let name = path_of(&image);
            let target = format!(
                "driver=raw,offset={},size={},file.driver={driver},file.filename={}",
                part.offset,
                part.size,
                path_of(&file)
            );
            let most = part.offset.saturating_add(part.size);
            let time = Time::long(size);
            let mut program = this.program(vec![image, file], most, time);
            program.args(["convert", "-p", "-n", "-t", "none", "-f"]);
            program.arg(base.format.as_str()).arg(name);
            program.args(["--target-image-opts", &target]);
            let written = run(program, &disk, time, progress).await;
            disk.take_back().await;
            written
        };
        let path = part.path.to_owned();
        written.await.map_err(|reason| Failed { path, reason })
    }
}
