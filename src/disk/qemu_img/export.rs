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
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::join::{Chain, Image, Layer, Most};
use super::sizes::size_in;
use super::{BLOCK, Base, Failed, Guard, QemuImg, is_too_much, look, tables};
use crate::foreign::Open;
use crate::images::{has_data_file, head_of};
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

/// An open file of a disk.
#[derive(Debug)]
struct Measured {
    file: Open<File>,
    /// How many bytes it takes.
    bytes: u64,
    /// The virtual size in its header; 0 where that says none.
    size: u64,
    has_data_file: bool,
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
        let mut files = Vec::new();
        for path in std::iter::once(disk).chain(below.iter().map(PathBuf::as_path)) {
            let file = self.open_part(path).await?;
            least = least.saturating_add(file.bytes);
            files.push(file);
        }
        let image = match base {
            Some(base) => Some(self.open_under(base).await?),
            None => None,
        };
        least = least.saturating_add(image.as_ref().map_or(0, |image| image.bytes));
        let most = size.saturating_add(tables(size));
        let least = least.min(most);
        let claim = Arc::new(self.budget.claim(target, least, least).await?);
        let room = self.budget.room(target).await?;

        // The program opens the disk by its descriptor, so that it needs the right to read it.
        let this = self.for_run()?;
        let mut layers = Vec::new();
        for Measured { file, size, .. } in files {
            let guard = Some(Arc::clone(&guard));
            let lent = match access {
                Access::Lent => this.lend_with(&file, guard).await?,
                Access::Shared => this.share(&file, guard).await?,
            };
            layers.push(Layer { file, lent, size });
        }
        let copy = this.create(target).await?;
        let image = image.zip(base).map(|(image, base)| Image {
            file: image.file,
            format: base.format,
            size: image.size,
        });
        let chain = Chain { layers, image };
        let bounds = Most {
            file: most.min(room),
            disk: size,
        };
        let joined = tokio::select! {
            joined = this.join(&chain, &copy, bounds, progress) => joined,
            reason = outgrown(&claim, most) => Err(reason),
        };
        for layer in chain.layers {
            layer.lent.take_back().await;
        }
        copy.take_back().await;
        joined.map_err(|reason| {
            if is_too_much(&reason) && room < most {
                return format!(
                    "No space left on device: the copy takes more than the {room} bytes that are free \
                     beside the reserve (images.reserve)"
                );
            }
            reason
        })
    }

    async fn open_part(&self, path: &Path) -> Result<Measured, String> {
        let step = format!("open the disk {}", path.display());
        let file = self.open(path, &step, |path| File::open(path)).await?;
        let measured = Measured::new(file, "measure the disk").await?;
        if measured.has_data_file {
            return Err("the header of the disk names an external data file".to_owned());
        }
        Ok(measured)
    }

    async fn open_under(&self, base: Base<'_>) -> Result<Measured, String> {
        let image = self.open_image(base.path).await?;
        Measured::new(image, "measure the image").await
    }
}

impl Measured {
    async fn new(file: Open<File>, step: &str) -> Result<Self, String> {
        let measure = |file: &File| Ok((file.metadata()?.blocks() * BLOCK, head_of(file)?));
        let (bytes, head) = look(&file, step, measure).await?;
        Ok(Self {
            bytes,
            size: size_in(&head),
            has_data_file: has_data_file(&head),
            file,
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
