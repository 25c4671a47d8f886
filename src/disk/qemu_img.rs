//! Writes disks with `qemu-img`.
//!
//! Invariant: formats are named, never guessed. The program reads images of strangers, so it is
//! confined as a [`Helper`]: it gets image and disk as descriptors, and a disk belongs to its user
//! only while it runs; it never runs as the owner of a disk. The header of a disk that another
//! program may have written is judged again on the descriptor that the program gets. It ends with the future that runs it; one that outlived an earlier process
//! continues with a file that has no name any more, or, when a disk grows, holds QEMU's lock of the
//! image until it is done: no other process opens the disk before.
//! What it writes is within the node's [`Budget`].
//! Failure: [`Failed`] with the program's own message; what it wrote is removed then.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::process::Command;

use crate::helper::{self, Helper, Limits, User, path_of};
use crate::images::{Format, has_data_file, head_of, qcow2_tables as tables};
use crate::metadata;

mod budget;
mod convert;
mod opened;
mod run;
mod sizes;

pub use budget::Budget;
use run::{Time, run};

/// Creating an overlay writes a few clusters; more time means a hung disk.
const OVERLAY: Duration = Duration::from_secs(30);

/// A copy that makes no progress for so long is on a hung disk.
const STALL: Duration = Duration::from_secs(120);

/// The least that a device is expected to take in, in bytes per second: a hundredth of a large
/// image may take its time.
const SLOWEST: u64 = 1 << 20;

/// Address space of the program: its libraries, the stacks of its threads, and its caches.
const ADDRESS_SPACE: u64 = 4 << 30;

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// A disk that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write disk {}: {reason}", path.display())]
pub struct Failed {
    /// The disk.
    pub path: PathBuf,
    /// What `qemu-img` or the kernel reported.
    pub reason: String,
}

/// What a disk is made from.
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// The image's file.
    pub path: &'a Path,
    /// How it is to be read.
    pub format: Format,
}

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

/// `qemu-img`, confined.
#[derive(Debug, Clone)]
pub struct QemuImg {
    helper: Helper,
    budget: Budget,
}

impl QemuImg {
    /// The program, to be run as QEMU's user.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self::with(Helper::new("qemu-img", User { uid, gid }))
    }

    fn with(helper: Helper) -> Self {
        Self {
            helper,
            budget: Budget::default(),
        }
    }

    /// The same program within the limits of a node.
    pub fn within(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Makes a disk of `size` bytes that holds only differences from `base`, which is not read.
    pub async fn overlay(&self, path: &Path, base: Base<'_>, size: u64) -> Result<(), Failed> {
        let made = async {
            let room = self.budget.room(path).await?;
            self.budget.count(path, size).await?;
            let disk = self.create(path).await?;
            let file = disk.inherited()?;
            let name = path_of(&file);
            let time = Time::short(OVERLAY);
            let most = tables(size).min(room);
            let mut command = self.program(vec![file], most, time)?;
            command.args(["create", "-q", "-u", "-f", "qcow2", "-F"]);
            command.arg(base.format.as_str()).arg("-b").arg(base.path);
            command.arg(name).arg(size.to_string());
            run(command, time, |_| {}).await
        };
        self.settle(path, made.await).await
    }

    /// Creates a disk of `size` bytes, at least the image's, that holds all of `base`; `progress`
    /// gets percents.
    pub async fn copy(
        &self,
        path: &Path,
        base: Base<'_>,
        size: u64,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let made = async {
            let image = open(base.path).await?;
            let least = image
                .metadata()
                .map_err(|e| format!("measure the image: {e}"))?;
            let (least, most) = (least.blocks() * BLOCK, size.saturating_add(tables(size)));
            let claim = self.budget.claim(path, least, most).await?;
            let room = claim.bytes();
            self.budget.count(path, size).await?;
            let disk = self.create(path).await?;
            let file = disk.inherited()?;
            let names = [path_of(&image), path_of(&file)];
            let time = Time::long(size);
            let shares = shares_blocks(&image, &disk).await?;
            let mut command = self.program(vec![image, file], most.min(room), time)?;
            command.args(["convert", "-p", "-O", "qcow2", "-f", base.format.as_str()]);
            // The kernel copies; where the file system can, both files have the same blocks.
            command.args(shares.then_some("-C"));
            command.args(names);
            let converted = run(command, time, progress).await;
            converted.map_err(|reason| match is_too_much(&reason) {
                true if room < most => format!(
                    "No space left on device: the disk takes more than the {room} bytes that are \
                     free beside the reserve (images.reserve)"
                ),
                _ => reason,
            })?;
            self.resize(&disk, size, room).await
        };
        self.settle(path, made.await).await
    }

    /// Makes a disk of ours larger; one that cannot be is left alone.
    pub async fn grow(&self, path: &Path, size: u64) -> Result<(), Failed> {
        let grown = async {
            self.budget.room(path).await?;
            let before = self.budget.count(path, size).await?;
            let made = self.make_larger(path, size).await;
            if let (Err(_), Some(before), Some(sizes)) = (&made, before, self.budget.sizes()) {
                let settled = sizes.settle_growth(path, before, size).await;
                settled.map_err(|e| format!("record its size: {}", crate::one_line(&e)))?;
            }
            made
        };
        let path = path.to_owned();
        grown.await.map_err(|reason| Failed { path, reason })
    }

    /// Writes all of `base`, of `size` bytes, to a part of a device, past the kernel's cache.
    /// `device` is the open device, which stays open for as long as the program runs, even if it
    /// outlives this process.
    pub async fn write(
        &self,
        part: Part<'_>,
        base: Base<'_>,
        size: u64,
        device: File,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let written = async {
            let image = open(base.path).await?;
            let disk = self.lend(device).await?;
            let file = disk.inherited()?;
            let driver = match disk.is_device {
                true => "host_device",
                false => "file",
            };
            let name = path_of(&image);
            let target = format!(
                "driver=raw,offset={},size={},file.driver={driver},file.filename={}",
                part.offset,
                part.size,
                path_of(&file)
            );
            let (most, time) = (part.offset.saturating_add(part.size), Time::long(size));
            let mut command = self.program(vec![image, file], most, time)?;
            command.args(["convert", "-p", "-n", "-t", "none", "-f"]);
            command.arg(base.format.as_str()).arg(name);
            command.args(["--target-image-opts", &target]);
            run(command, time, progress).await
        };
        let path = part.path.to_owned();
        written.await.map_err(|reason| Failed { path, reason })
    }

    async fn make_larger(&self, path: &Path, size: u64) -> Result<(), String> {
        let path = path.to_owned();
        let opened = blocking(move || File::options().read(true).write(true).open(path));
        let file = opened.await.map_err(|e| format!("open it: {e}"))?;
        let disk = self.lend(file).await?;
        self.resize(&disk, size, u64::MAX).await
    }

    async fn resize(&self, disk: &Lent, size: u64, room: u64) -> Result<(), String> {
        let file = disk.inherited()?;
        let looked = blocking(move || Ok((file.metadata()?, head_of(&file)?)));
        let (there, head) = looked.await.map_err(|e| format!("measure it: {e}"))?;
        // QEMU writes its disk, and an emulator that its guest has taken over writes what it likes.
        if has_data_file(&head) {
            return Err("its header names an external data file".to_owned());
        }
        let file = disk.inherited()?;
        let name = path_of(&file);
        let most = there.len().saturating_add(tables(size)).min(room);
        let time = Time::short(STALL);
        let mut command = self.program(vec![file], most, time)?;
        // What a header says of other files is not followed: the program has none of them open.
        let alone = serde_json::json!({
            "driver": "qcow2",
            "backing": null,
            "file": {"driver": "file", "filename": name},
        });
        command.args(["resize", "-q", &format!("json:{alone}"), &size.to_string()]);
        run(command, time, |_| {}).await
    }

    /// Counts the disk in a directory that was removed no more in the budget of the node.
    pub async fn forget(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.forget(directory).await
    }

    /// As [`Self::forget`], for all disks below `root` in directories whose names `is_gone` accepts.
    pub async fn forget_gone(
        &self,
        root: &Path,
        is_gone: impl Fn(&str) -> bool,
    ) -> metadata::Result<()> {
        self.budget.forget_gone(root, is_gone).await
    }

    async fn settle(&self, path: &Path, outcome: Result<(), String>) -> Result<(), Failed> {
        let Err(reason) = outcome else {
            return Ok(());
        };
        // A part of a disk is worth nothing; the error is what counts.
        let removed = tokio::fs::remove_file(path).await;
        let is_gone = removed.map_or_else(|e| e.kind() == ErrorKind::NotFound, |()| true);
        if let Some(directory) = path.parent().filter(|_| is_gone) {
            // One that stays counts until the next attempt, or the next start.
            if let Err(error) = self.forget(directory).await {
                let (path, error) = (path.display(), crate::one_line(&error));
                tracing::warn!(%path, error, "size of root disk not forgotten");
            }
        }
        let path = path.to_owned();
        Err(Failed { path, reason })
    }

    /// The program without arguments, with files and limits.
    fn program(&self, files: Vec<File>, most: u64, time: Time) -> Result<Command, String> {
        let limits = Limits {
            address_space: ADDRESS_SPACE,
            // One processor's.
            cpu: time.total.as_secs(),
            file: most,
        };
        let command = self.helper.command(limits, files);
        command.map_err(|e| format!("confine qemu-img: {e}"))
    }

    /// A new file in the place of one of an earlier attempt, whose program may still have that
    /// open and locked.
    async fn create(&self, path: &Path) -> Result<Lent, String> {
        let path = path.to_owned();
        let created = blocking(move || {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut options = File::options();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(path)
        });
        let file = created.await.map_err(|e| format!("create it: {e}"))?;
        self.lend(file).await
    }

    /// Lets the helper's user write to a file, whatever user owns it.
    async fn lend(&self, file: File) -> Result<Lent, String> {
        let user = self.helper.user();
        let lent = blocking(move || {
            let is = file.metadata()?;
            let has_access = !geteuid().is_root() || [0, is.uid()].contains(&user.uid);
            let before = match has_access {
                true => None,
                false => Some(grant(&file, &is, user)?),
            };
            Ok(Lent {
                is_device: is.file_type().is_block_device(),
                before,
                file,
            })
        });
        lent.await.map_err(|e| format!("lend it to qemu-img: {e}"))
    }
}

/// Lets this user write to a file; what is to be put back afterwards.
fn grant(file: &File, is: &Metadata, user: User) -> io::Result<Before> {
    match fchown(file, Some(user.uid), Some(user.gid)) {
        Ok(()) => Ok(Before::Owner(is.uid(), is.gid())),
        // Storage that maps root to another user lets only that one write, and gives no file away.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            let mode = is.mode() & 0o7777;
            file.set_permissions(Permissions::from_mode(mode | 0o006))?;
            Ok(Before::Mode(mode))
        }
        Err(e) => Err(e),
    }
}

/// Whether the file system lets a new disk have the blocks of the image until one of them is
/// written to.
async fn shares_blocks(image: &File, disk: &Lent) -> Result<bool, String> {
    let image = image.try_clone();
    let image = image.map_err(|e| format!("duplicate the descriptor of the image: {e}"))?;
    let disk = disk.inherited()?;
    let tried = blocking(move || {
        let is_cloned = rustix::fs::ioctl_ficlone(&disk, &image).is_ok();
        disk.set_len(0)?;
        Ok(is_cloned)
    });
    tried.await.map_err(|e| format!("empty it: {e}"))
}

/// A file that the user of the helper may write to for as long as this lives.
#[derive(Debug)]
struct Lent {
    file: File,
    is_device: bool,
    before: Option<Before>,
}

/// How a file was before it was lent.
#[derive(Debug, Clone, Copy)]
enum Before {
    /// It belonged to this user and group.
    Owner(u32, u32),
    /// It had this mode.
    Mode(u32),
}

impl Lent {
    /// Another descriptor of the file, for the program.
    fn inherited(&self) -> Result<File, String> {
        let file = self.file.try_clone();
        file.map_err(|e| format!("duplicate its descriptor: {e}"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let returned = match self.before {
            None => Ok(()),
            Some(Before::Owner(uid, gid)) => fchown(&self.file, Some(uid), Some(gid)),
            Some(Before::Mode(mode)) => self.file.set_permissions(Permissions::from_mode(mode)),
        };
        if let Err(error) = returned {
            // A machine's file that stays with QEMU's user, as after a kill of the daemon, goes to
            // the machine's user when libvirt starts the machine.
            tracing::warn!(
                error = crate::one_line(&error),
                "file not taken back from qemu-img"
            );
        }
    }
}

/// Whether a program reached its limit of file size: it gets a signal, or, in a thread that blocks
/// signals, an error.
fn is_too_much(reason: &str) -> bool {
    reason.ends_with(helper::WROTE_TOO_MUCH) || reason.ends_with("File too large")
}

impl Time {
    const fn short(all: Duration) -> Self {
        Self {
            stall: all,
            total: all,
        }
    }

    /// The time that so many bytes may take.
    const fn long(size: u64) -> Self {
        let (whole, part) = (size / SLOWEST, size / 100 / SLOWEST);
        Self {
            stall: Duration::from_secs(STALL.as_secs() + part),
            total: Duration::from_secs(5 * STALL.as_secs() + whole),
        }
    }
}

async fn open(path: &Path) -> Result<File, String> {
    let owned = path.to_owned();
    let opened = blocking(move || File::open(owned)).await;
    opened.map_err(|e| format!("open the image {}: {e}", path.display()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(io::Error::other(e)))
}

#[cfg(test)]
mod tests;
