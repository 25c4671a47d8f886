//! Writes what a disk has, with the image under it, to a file that stands alone.
//!
//! Invariant: which file is under the disk is said here; what its header says of other files is not
//! followed, since an emulator that its guest has taken over may have written it. The copy is
//! claimed from the free space of its file system, and counts in no budget of disks.
//! Failure: [`Failed`]; the copy is removed, the disk is as it was.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::json;

use super::{BLOCK, Base, Failed, QemuImg, Time, is_too_much, lent::look, run, tables};
use crate::helper::path_of;
use crate::images::{Format, has_data_file, head_of};

/// A disk, what is under it, and its size in bytes.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    disk: &'a Path,
    base: Option<Base<'a>>,
    size: u64,
}

impl QemuImg {
    /// Writes all of a disk of `size` bytes to `target`; `progress` gets percents.
    pub async fn copy_out(
        &self,
        disk: &Path,
        base: Option<Base<'_>>,
        target: &Path,
        size: u64,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let copied = self.write_out(Source { disk, base, size }, target, progress);
        let Err(reason) = copied.await else {
            return Ok(());
        };
        // A part of a copy is worth nothing; the error is what counts.
        let _ = tokio::fs::remove_file(target).await;
        let path = target.to_owned();
        Err(Failed { path, reason })
    }

    async fn write_out(
        &self,
        source: Source<'_>,
        target: &Path,
        progress: impl FnMut(u8),
    ) -> Result<(), String> {
        let Source { disk, base, size } = source;
        let step = format!("open the disk {}", disk.display());
        let disk = self.open(disk, &step, |path| File::open(path)).await?;
        let measure = |file: &File| Ok((file.metadata()?.blocks() * BLOCK, head_of(file)?));
        let (mut least, head) = look(&disk, "measure the disk", measure).await?;
        if has_data_file(&head) {
            return Err("the header of the disk names an external data file".to_owned());
        }
        let image = match &base {
            Some(base) => Some(self.open_image(base.path).await?),
            None => None,
        };
        if let Some(image) = &image {
            let is = look(image, "measure the image", File::metadata).await?;
            least = least.saturating_add(is.blocks() * BLOCK);
        }
        let most = size.saturating_add(tables(size));
        let claim = self.budget.claim(target, least.min(most), most).await?;
        let room = claim.bytes();

        // The program opens the disk by its descriptor, so that it needs the right to read it.
        let lent = self.lend(&disk).await?;
        let copy = self.create(target).await?;
        let from = lent.inherited()?;
        let to = copy.inherited()?;
        let file = |file: &_| json!({"driver": "file", "filename": path_of(file)});
        let under = image.as_ref().zip(base).map(|(image, base)| {
            let mut under = json!({"driver": base.format.as_str(), "file": file(image)});
            if base.format == Format::Qcow2 {
                under["backing"] = json!(null);
            }
            under
        });
        let whole = json!({"driver": "qcow2", "file": file(&from), "backing": under});
        let name = path_of(&to);
        let files = [from, to].into_iter().chain(image).collect();
        let mut program = self.program(files, most.min(room), Time::long(size));
        // A program that outlives this process keeps no machine from its disk.
        program.args(["convert", "-p", "-U", "-O", "qcow2"]);
        program.arg(format!("json:{whole}")).arg(name);
        let converted = run(program, &copy, Time::long(size), progress).await;
        lent.take_back().await;
        copy.take_back().await;
        converted.map_err(|reason| match is_too_much(&reason) {
            true if room < most => format!(
                "No space left on device: the copy takes more than the {room} bytes that are free \
                 beside the reserve (images.reserve)"
            ),
            _ => reason,
        })
    }
}
