//! Disks that are open files: those of volumes, which have no path that the program may follow.
//!
//! Invariant: a file is as large as its disk before an image is written to it, and reads as zeros
//! there. What it takes is the volume's space, not the node's budget. Pods that have the volume may
//! write to a file that has a name: the header of a qcow2 disk is judged again on the descriptor
//! that the program gets, right before it runs and after it has written the image. A disk that is
//! refused is its owner's again when the caller gets the error.
//! Failure: what the program reported, or that the volume does not answer; what the program wrote
//! stays for the caller to remove.

use std::fs::File;

use super::{Base, Lent, Loan, OVERLAY, QemuImg, Time, look, path_of, run, tables};
use crate::foreign::Open;
use crate::images::{Format, head_of, judge};

/// A disk that is an open file.
#[derive(Debug, Clone)]
pub struct OpenDisk {
    /// The file.
    pub file: Open<File>,
    /// How it is to be read.
    pub format: Format,
}

impl QemuImg {
    /// Makes an empty file a qcow2 disk of `size` bytes.
    pub async fn format_qcow2(&self, file: Open<File>, size: u64) -> Result<(), String> {
        let this = self.for_run()?;
        let disk = this.lend(&file).await?;
        let inherited = disk.inherited()?;
        let name = path_of(&inherited);
        let time = Time::short(OVERLAY);
        let mut program = this.program(vec![inherited], tables(size), time);
        program.args(["create", "-q", "-f", "qcow2", &name, &size.to_string()]);
        let made = run(program, &disk, time, |_| {}).await;
        disk.take_back().await;
        made
    }

    /// Writes all of `base` to a new disk of `size` bytes; `progress` gets percents.
    pub async fn fill(
        &self,
        target: OpenDisk,
        base: Base<'_>,
        size: u64,
        progress: impl FnMut(u8),
    ) -> Result<(), String> {
        let OpenDisk { file, format } = target;
        let image = self.open_image(base.path).await?;
        let this = self.for_run()?;
        let disk = this.lend(&file).await?;
        let filled = async {
            let inherited = disk.inherited()?;
            let name = path_of(&image);
            let path = path_of(&inherited);
            let target = match format {
                Format::Raw => format!("driver=raw,file.driver=file,file.filename={path}"),
                Format::Qcow2 => {
                    stands_alone(&disk).await?;
                    format!("driver=qcow2,file.driver=file,file.filename={path}")
                }
            };
            let most = size.saturating_add(tables(size));
            let time = Time::long(size);
            let mut program = this.program(vec![image, inherited], most, time);
            program.args(["convert", "-p", "-n", "--target-is-zero", "-f"]);
            program.arg(base.format.as_str()).arg(name);
            program.args(["--target-image-opts", &target]);
            run(program, &disk, time, progress).await?;
            match format {
                Format::Raw => Ok(()),
                Format::Qcow2 => stands_alone(&disk).await,
            }
        };
        let filled = filled.await;
        disk.take_back().await;
        filled
    }

    /// Makes a qcow2 disk larger, unless an emulator has it open.
    pub async fn enlarge_qcow2(&self, file: Open<File>, size: u64) -> Result<(), String> {
        let this = self.for_run()?;
        let disk = this.lend(&file).await?;
        let resized = match stands_alone(&disk).await {
            Ok(()) => this.resize(&disk, size, u64::MAX).await,
            refused => refused,
        };
        disk.take_back().await;
        resized
    }
}

/// Whether the file is a qcow2 disk that refers to no other file.
async fn stands_alone(disk: &Lent) -> Result<(), String> {
    let read = |loan: &Loan| Ok((head_of(&loan.file)?, loan.file.metadata()?.len()));
    let (head, length) = look(&disk.loan, "read its header", read).await?;
    match judge(&head, Some(length), u64::MAX) {
        Ok(disk) if disk.format == Format::Qcow2 => Ok(()),
        Ok(_) => Err("it is not qcow2 any more".to_owned()),
        Err(error) => Err(crate::one_line(&error)),
    }
}
