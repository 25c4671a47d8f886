//! Writes disks with `qemu-img`.
//!
//! Invariant: formats are named, never guessed. The program reads images of strangers, so it is
//! confined as a [`Helper`]: it gets image and disk as descriptors, and a disk belongs to the user of
//! the run only while it runs; it never runs as the owner of a disk. The header of a disk that another
//! program may have written is judged again on the descriptor that the program gets. It ends with
//! the future that runs it; one that outlived an earlier process continues with a file that has no
//! name any more, or, when a disk grows, holds QEMU's lock of the image until it is done: no other
//! process opens the disk before. No thread of the runtime opens, lends, takes back or closes a
//! file: its file system may never answer. What the program writes is within the node's [`Budget`].
//! Failure: [`Failed`] with the program's own message, or with the file that does not answer; what
//! it wrote is removed then.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::foreign::{Foreign, Open};
use crate::helper::{self, Helper, Limits, path_of};
use crate::images::{Format, has_data_file, head_of, names_backing_file, qcow2_tables as tables};
use crate::metadata;
use crate::space::Claim;

mod budget;
mod check;
mod convert;
mod export;
mod layers;
mod lent;
mod opened;
mod pulled;
mod run;
mod shared;
mod sizes;

pub use budget::Budget;
pub use export::{Access, Source};
pub use layers::{Merge, NewLayer};
pub use lent::Guard;
use lent::{Lent, Loan, look};
use run::{Program, Time, run};

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

/// The mode of a file that its group reads.
const READERS: u32 = 0o640;

/// A disk that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write disk {}: {reason}", path.display())]
pub struct Failed {
    /// The disk.
    pub path: PathBuf,
    /// What `qemu-img` or the kernel reported.
    pub reason: String,
}

impl Failed {
    /// Whether the node has no space for the disk.
    pub fn is_full(&self) -> bool {
        self.reason.starts_with("No space left on device")
    }

    /// Whether disks would have more together than `vm.disk_budget`.
    pub fn is_over_budget(&self) -> bool {
        self.reason.starts_with(budget::OVER_BUDGET)
    }
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
    /// Threads that work on files of the node.
    foreign: Foreign,
    /// Of files that machines have.
    readers: shared::Readers,
}

impl QemuImg {
    /// The program, each run of which has a user of its own, in the group that may read images.
    pub fn new(gid: u32) -> Self {
        Self::with(Helper::new("qemu-img", gid))
    }

    /// The program as this user.
    #[cfg(test)]
    pub(crate) fn as_user(uid: u32, gid: u32) -> Self {
        Self::with(Helper::as_user("qemu-img", helper::User { uid, gid }))
    }

    fn with(helper: Helper) -> Self {
        Self {
            helper,
            budget: Budget::default(),
            foreign: Foreign::default(),
            readers: shared::Readers::default(),
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
            let this = self.for_run()?;
            let disk = this.create(path).await?;
            let file = disk.inherited()?;
            let name = path_of(&file);
            let time = Time::short(OVERLAY);
            let most = tables(size).min(room);
            let mut program = this.program(vec![file], most, time);
            program.args(["create", "-q", "-u", "-f", "qcow2", "-F"]);
            program.arg(base.format.as_str()).arg("-b").arg(base.path);
            program.arg(name).arg(size.to_string());
            let made = run(program, &disk, time, |_| {}).await;
            disk.take_back().await;
            made
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
            let image = self.open_image(base.path).await?;
            let least = look(&image, "measure the image", File::metadata).await?;
            let (least, most) = (least.blocks() * BLOCK, size.saturating_add(tables(size)));
            let claim = self.budget.claim(path, least, most).await?;
            let room = claim.bytes();
            self.budget.count(path, size).await?;
            let this = self.for_run()?;
            let disk = this.create(path).await?;
            let file = disk.inherited()?;
            let names = [path_of(&image), path_of(&file)];
            let time = Time::long(size);
            let shares = shares_blocks(&image, &disk).await?;
            let mut program = this.program(vec![image, file], most.min(room), time);
            program.args(["convert", "-p", "-O", "qcow2", "-f", base.format.as_str()]);
            // The kernel copies; where the file system can, both files have the same blocks.
            program.args(shares.then_some("-C"));
            program.args(names);
            let converted = run(program, &disk, time, progress).await;
            converted.map_err(|reason| match is_too_much(&reason) {
                true if room < most => format!(
                    "No space left on device: the disk takes more than the {room} bytes that are \
                     free beside the reserve (images.reserve)"
                ),
                _ => reason,
            })?;
            let resized = this.resize(&disk, size, room).await;
            disk.take_back().await;
            resized
        };
        self.settle(path, made.await).await
    }

    /// Counts a disk of `size` bytes that is about to be made at `path` in the budget of the node, until it is
    /// [forgotten](Self::forget).
    pub async fn count_new(&self, path: &Path, size: u64) -> Result<(), Failed> {
        let counted = self.budget.count(path, size).await.map(drop);
        let path = path.to_owned();
        counted.map_err(|reason| Failed { path, reason })
    }

    /// Claims space for files of so many bytes in the directory of `path`, until the claim is dropped.
    pub(crate) async fn claim(&self, path: &Path, bytes: u64) -> Result<Claim, Failed> {
        let claimed = self.budget.claim(path, bytes, bytes).await;
        let path = path.to_owned();
        claimed.map_err(|reason| Failed { path, reason })
    }

    /// Refuses when nothing is free beside the reserve on the file system of `path`.
    pub(crate) async fn check_room(&self, path: &Path) -> Result<(), Failed> {
        let room = self.budget.room(path).await.map(drop);
        let path = path.to_owned();
        room.map_err(|reason| Failed { path, reason })
    }

    /// Lets the program read a file of ours, which stays ours.
    pub(crate) async fn let_read(&self, path: &Path) -> io::Result<()> {
        let group = self.helper.user().gid;
        let path = path.to_owned();
        let permit = move || {
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::chown(&path, None, Some(group))?;
            }
            std::fs::set_permissions(&path, Permissions::from_mode(READERS))
        };
        let permitted = tokio::task::spawn_blocking(permit).await;
        permitted.unwrap_or_else(|e| Err(io::Error::other(e)))
    }

    /// The virtual size in the header of a disk, which an emulator that its guest has taken over may have written; 0
    /// where it is no qcow2 file.
    pub async fn size_in_header(&self, path: &Path) -> io::Result<u64> {
        let looked = async {
            let disk = self.open(path, "open it", |path| File::open(path)).await?;
            look(&disk, "read its header", sizes::size_in_header).await
        };
        looked.await.map_err(io::Error::other)
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
        device: Open<File>,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let written = async {
            let image = self.open_image(base.path).await?;
            let this = self.for_run()?;
            let disk = this.lend(&device).await?;
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

    async fn make_larger(&self, path: &Path, size: u64) -> Result<(), String> {
        let file = self.open(path, "open it", open_to_write).await?;
        let this = self.for_run()?;
        let disk = this.lend(&file).await?;
        let resized = this.resize(&disk, size, u64::MAX).await;
        disk.take_back().await;
        resized
    }

    async fn resize(&self, disk: &Lent, size: u64, room: u64) -> Result<(), String> {
        let measure = |loan: &Loan| Ok((loan.file.metadata()?, head_of(&loan.file)?));
        let (there, head) = look(&disk.loan, "measure it", measure).await?;
        // QEMU writes its disk, and an emulator that its guest has taken over writes what it likes.
        if has_data_file(&head) {
            return Err("its header names an external data file".to_owned());
        }
        let file = disk.inherited()?;
        let name = path_of(&file);
        let most = there.len().saturating_add(tables(size)).min(room);
        let time = Time::short(STALL);
        let mut program = self.program(vec![file], most, time);
        // What a header says of other files is not followed: the program has none of them open.
        let alone = serde_json::json!({
            "driver": "qcow2",
            "backing": null,
            "file": {"driver": "file", "filename": name},
        });
        program.args(["resize", "-q", &format!("json:{alone}"), &size.to_string()]);
        run(program, disk, time, |_| {}).await
    }

    /// Whether the header of a disk says that its data are in another file.
    pub(crate) async fn has_data_file(&self, disk: &Path) -> io::Result<bool> {
        let looked = async {
            let disk = self.open(disk, "open it", |path| File::open(path)).await?;
            let read = |file: &File| Ok(has_data_file(&head_of(file)?));
            look(&disk, "read its header", read).await
        };
        looked.await.map_err(io::Error::other)
    }

    /// Whether the header of a disk of ours names another file, from which it holds only differences.
    pub async fn is_overlay(&self, disk: &Path) -> io::Result<bool> {
        let looked = async {
            let disk = self.open(disk, "open it", |path| File::open(path)).await?;
            look(&disk, "read its header", names_backing_file).await
        };
        looked.await.map_err(io::Error::other)
    }

    /// The virtual size of the disk in a directory, with its layers, as it is recorded.
    pub fn recorded_size(&self, directory: &Path) -> Option<u64> {
        self.budget.recorded(directory)
    }

    /// Counts the disk in a directory that was removed no more in the budget of the node.
    pub async fn forget(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.forget(directory).await
    }

    /// Counts the disk in a directory alone again in the budget of the node: the one that was to replace it
    /// was removed.
    pub async fn count_kept(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.keep(directory).await
    }

    /// Counts the disk that was made to replace the one in a directory: that one was removed.
    pub async fn count_replacement(&self, directory: &Path) -> metadata::Result<()> {
        self.budget.replace(directory).await
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
        // One that stays counts until the next attempt, or the next start.
        if let Some(directory) = path.parent().filter(|_| is_gone) {
            let forgotten = if sizes::is_beside_another(path).await {
                self.count_kept(directory).await
            } else {
                self.forget(directory).await
            };
            if let Err(error) = forgotten {
                let (path, error) = (path.display(), crate::one_line(&error));
                tracing::warn!(%path, error, "size of root disk not forgotten");
            }
        }
        let path = path.to_owned();
        Err(Failed { path, reason })
    }

    /// The program with a user for one run, whom the files of the run are lent to.
    fn for_run(&self) -> Result<Self, String> {
        let helper = self.helper.for_run().map_err(|e| e.to_string())?;
        Ok(Self {
            helper,
            ..self.clone()
        })
    }

    /// The program without arguments, with files and limits.
    fn program(&self, files: Vec<Open<File>>, most: u64, time: Time) -> Program {
        let limits = Limits {
            address_space: ADDRESS_SPACE,
            // One processor's.
            cpu: time.total.as_secs(),
            file: most,
        };
        Program::new(self.helper.clone(), limits, files)
    }

    /// A new file in the place of one of an earlier attempt, whose program may still have that
    /// open and locked.
    async fn create(&self, path: &Path) -> Result<Lent, String> {
        let create = |path: &Path| {
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut options = File::options();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(path)
        };
        let file = self.open(path, "create it", create).await?;
        self.lend(&file).await
    }

    async fn open_image(&self, path: &Path) -> Result<Open<File>, String> {
        let step = format!("open the image {}", path.display());
        self.open(path, &step, |path| File::open(path)).await
    }

    /// Opens a file of the node, on a thread and within a deadline.
    async fn open(
        &self,
        path: &Path,
        step: &str,
        open: impl FnOnce(&Path) -> io::Result<File> + Send + 'static,
    ) -> Result<Open<File>, String> {
        let (owner, path) = (path.display().to_string(), path.to_owned());
        let opened = self.foreign.look(&owner, move || open(&path)).await;
        let opened = opened.map_err(|e| format!("{step}: {}", crate::one_line(&e)))?;
        let file = opened.map_err(|e| format!("{step}: {e}"))?;
        Ok(self.foreign.keep(&owner, file))
    }
}

/// Whether the file system lets a new disk have the blocks of the image until one of them is
/// written to.
async fn shares_blocks(image: &Open<File>, disk: &Lent) -> Result<bool, String> {
    let image = image.clone();
    let share = move |loan: &Loan| {
        let is_cloned = rustix::fs::ioctl_ficlone(&loan.file, image.local()).is_ok();
        loan.file.set_len(0).map(|()| is_cloned)
    };
    // A large image takes its time.
    let tried = disk
        .loan
        .run(share)
        .await
        .map_err(|e| crate::one_line(&e))?;
    tried.map_err(|e| format!("empty it: {e}"))
}

/// Whether a program reached its limit of file size.
fn is_too_much(reason: &str) -> bool {
    reason.ends_with(helper::WROTE_TOO_MUCH)
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

fn open_to_write(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests;
