//! Disks that are open files: those of volumes, which have no path that the program may follow.
//!
//! Invariant: a file is as large as its disk before an image is written to it, and reads as zeros
//! there. What it takes is the volume's space, not the node's budget. Pods that have the volume may
//! write to a file that has a name: the header of a qcow2 disk is judged again on the descriptor
//! that the program gets, right before it runs.
//! Failure: what the program reported; what it wrote stays for the caller to remove.

use std::fs::File;

use super::{Base, OVERLAY, QemuImg, Time, blocking, open, path_of, run, tables};
use crate::images::{Format, head_of, judge};

impl QemuImg {
    /// Makes an empty file a qcow2 disk of `size` bytes.
    pub async fn format_qcow2(&self, file: File, size: u64) -> Result<(), String> {
        let disk = self.lend(file).await?;
        let file = disk.inherited()?;
        let name = path_of(&file);
        let time = Time::short(OVERLAY);
        let mut command = self.program(vec![file], tables(size), time)?;
        command.args(["create", "-q", "-f", "qcow2", &name, &size.to_string()]);
        run(command, time, |_| {}).await
    }

    /// Writes all of `base` to a new disk of `size` bytes; `progress` gets percents.
    pub async fn fill(
        &self,
        (file, format): (File, Format),
        base: Base<'_>,
        size: u64,
        progress: impl FnMut(u8),
    ) -> Result<(), String> {
        let image = open(base.path).await?;
        let disk = self.lend(file).await?;
        let file = disk.inherited()?;
        let name = path_of(&image);
        let path = path_of(&file);
        let target = match format {
            Format::Raw => format!("driver=raw,file.driver=file,file.filename={path}"),
            Format::Qcow2 => {
                stands_alone(&file).await?;
                format!("driver=qcow2,file.driver=file,file.filename={path}")
            }
        };
        let (most, time) = (size.saturating_add(tables(size)), Time::long(size));
        let mut command = self.program(vec![image, file], most, time)?;
        command.args(["convert", "-p", "-n", "--target-is-zero", "-f"]);
        command.arg(base.format.as_str()).arg(name);
        command.args(["--target-image-opts", &target]);
        run(command, time, progress).await
    }

    /// Makes a qcow2 disk larger, unless an emulator has it open.
    pub async fn enlarge_qcow2(&self, file: File, size: u64) -> Result<(), String> {
        let disk = self.lend(file).await?;
        stands_alone(&disk.inherited()?).await?;
        self.resize(&disk, size, u64::MAX).await
    }
}

/// Whether the file is a qcow2 disk that refers to no other file.
async fn stands_alone(file: &File) -> Result<(), String> {
    let file = file.try_clone();
    let file = file.map_err(|e| format!("duplicate its descriptor: {e}"))?;
    let looked = blocking(move || Ok((head_of(&file)?, file.metadata()?.len())));
    let (head, length) = looked.await.map_err(|e| format!("read its header: {e}"))?;
    match judge(&head, Some(length), u64::MAX) {
        Ok(disk) if disk.format == Format::Qcow2 => Ok(()),
        Ok(_) => Err("it is not qcow2 any more".to_owned()),
        Err(error) => Err(crate::one_line(&error)),
    }
}
