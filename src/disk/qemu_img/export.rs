//! Writes what a disk has, with the image under it, to a file that stands alone.
//!
//! Invariant: which file is under the disk is said here; what its header says of other files is not
//! followed, since an emulator that its guest has taken over may have written it. What disk and image
//! take is claimed from the free space for the copy, which counts in no budget of disks; when the
//! copy has more, the claim grows with it, and leaves the rest to others.
//! Failure: [`Failed`]; the copy is removed, the disk is as it was.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{BLOCK, Base, Failed, Guard, QemuImg, Time, is_too_much, lent::look, run, tables};
use crate::helper::path_of;
use crate::images::{Format, has_data_file, head_of};
use crate::space::Claim;

/// How often the space that a copy takes is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What a copy is expected to take until the next look, in bytes.
const STEP: u64 = 256 << 20;

/// The byte of a disk that a QEMU locks while it may write to that.
const WRITER: i64 = 101;

/// A disk that is copied.
#[derive(Debug)]
pub struct Source<'a> {
    /// Its file.
    pub disk: &'a Path,
    /// The layers below it, the next one first.
    pub below: &'a [PathBuf],
    /// The image under the last one.
    pub base: Option<Base<'a>>,
    /// How many bytes its guest sees.
    pub size: u64,
    /// How the program gets the right to read its files.
    pub access: Access,
    /// What keeps others from it; dropped when the program no longer has the disk.
    pub guard: Guard,
}

/// The way in which the program gets the right to read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The file belongs to its user meanwhile: no machine has it, or gets it.
    Lent,
    /// The file keeps its owner: a machine may have it, but writes nothing to it.
    Shared,
}

impl QemuImg {
    /// Whether a QEMU has a disk open to write to it, as its lock says.
    pub async fn is_written(&self, disk: &Path) -> io::Result<bool> {
        let looked = async {
            let disk = self.open(disk, "open it", |path| File::open(path)).await?;
            look(&disk, "look at its locks", has_writer).await
        };
        looked.await.map_err(io::Error::other)
    }

    /// Writes all of a disk to `target`; `progress` gets percents.
    pub async fn copy_out(
        &self,
        source: Source<'_>,
        target: &Path,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let copied = self.write_out(source, target, progress);
        let Err(reason) = copied.await else {
            return Ok(());
        };
        // A part of a copy is worth nothing; the error is what counts.
        let _ = tokio::fs::remove_file(target).await;
        let path = target.to_owned();
        Err(Failed { path, reason })
    }

    /// Ends when the file system of a file has no more than its reserve.
    pub(crate) async fn filled(&self, path: &Path) -> Failed {
        let mut looks = looks();
        loop {
            looks.tick().await;
            if let Err(reason) = self.budget.room(path).await {
                let path = path.to_owned();
                return Failed { path, reason };
            }
        }
    }

    async fn write_out(
        &self,
        source: Source<'_>,
        target: &Path,
        progress: impl FnMut(u8),
    ) -> Result<(), String> {
        let Source {
            disk,
            below,
            base,
            size,
            access,
            guard,
        } = source;
        let mut least: u64 = 0;
        let mut layers = Vec::new();
        for path in std::iter::once(disk).chain(below.iter().map(PathBuf::as_path)) {
            let step = format!("open the disk {}", path.display());
            let disk = self.open(path, &step, |path| File::open(path)).await?;
            let measure = |file: &File| Ok((file.metadata()?.blocks() * BLOCK, head_of(file)?));
            let (bytes, head) = look(&disk, "measure the disk", measure).await?;
            if has_data_file(&head) {
                return Err("the header of the disk names an external data file".to_owned());
            }
            least = least.saturating_add(bytes);
            layers.push(disk);
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
        let least = least.min(most);
        let claim = Arc::new(self.budget.claim(target, least, least).await?);
        let room = self.budget.room(target).await?;

        // The program opens the disk by its descriptor, so that it needs the right to read it.
        let this = self.for_run()?;
        let mut lent = Vec::new();
        for layer in &layers {
            let guard = Some(Arc::clone(&guard));
            lent.push(match access {
                Access::Lent => this.lend_with(layer, guard).await?,
                Access::Shared => this.share(layer, guard).await?,
            });
        }
        let copy = this.create(target).await?;
        let to = copy.inherited()?;
        let file = |file: &_| json!({"driver": "file", "filename": path_of(file)});
        let mut whole = image.as_ref().zip(base).map(|(image, base)| {
            let mut under = json!({"driver": base.format.as_str(), "file": file(image)});
            if base.format == Format::Qcow2 {
                under["backing"] = json!(null);
            }
            under
        });
        let name = path_of(&to);
        let mut files: Vec<_> = image.into_iter().chain([to]).collect();
        for layer in lent.iter().rev() {
            let from = layer.inherited()?;
            whole = Some(json!({"driver": "qcow2", "file": file(&from), "backing": whole}));
            files.push(from);
        }
        let whole = whole.unwrap_or_default();
        let mut program = this.program(files, most.min(room), Time::long(size));
        // A program that outlives this process keeps no machine from its disk.
        program.args(["convert", "-p", "-U", "-O", "qcow2"]);
        program.arg(format!("json:{whole}")).arg(name);
        let converted = tokio::select! {
            converted = run(program, &copy, Time::long(size), progress) => converted,
            reason = outgrown(&claim, most) => Err(reason),
        };
        for layer in lent {
            layer.take_back().await;
        }
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

fn has_writer(disk: &File) -> io::Result<bool> {
    let kind = |kind: libc::c_int| i16::try_from(kind).map_err(io::Error::other);
    let mut lock = libc::flock {
        l_type: kind(libc::F_WRLCK)?,
        l_whence: kind(libc::SEEK_SET)?,
        l_start: WRITER,
        l_len: 1,
        l_pid: 0,
    };
    // On a file system without locks QEMU has none either.
    let looked = fcntl(disk, FcntlArg::F_OFD_GETLK(&mut lock));
    Ok(looked.is_ok() && lock.l_type != kind(libc::F_UNLCK)?)
}

fn looks() -> Interval {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// Lets a claim grow with its file; returns why when nothing is left for it.
async fn outgrown(claim: &Arc<Claim>, most: u64) -> String {
    let mut looks = looks();
    loop {
        looks.tick().await;
        let claim = Arc::clone(claim);
        let grown = tokio::task::spawn_blocking(move || claim.grow(STEP, most)).await;
        match grown {
            Ok(Ok(())) => {}
            Ok(Err(full)) => return full.to_string(),
            Err(error) => return error.to_string(),
        }
    }
}
