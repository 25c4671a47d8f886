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

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::foreign::{Foreign, Open};
#[cfg(test)]
use crate::helper::User;
use crate::helper::{Helper, Limits, path_of};
use crate::images::{Format, qcow2_tables as tables};

mod blocks;
mod budget;
mod check;
mod convert;
mod create;
mod device;
mod export;
mod grow;
mod header;
mod join;
mod layers;
mod lent;
mod opened;
mod pulled;
mod run;
mod shared;
mod sizes;

pub(crate) use blocks::shared_in;
pub use budget::Budget;
pub use device::Part;
pub use export::{Access, Source};
pub use layers::{Merge, NewLayer};
pub use lent::Guard;
use lent::{Lent, Loan, look};
pub use opened::OpenDisk;
use run::{Program, Time, is_too_much, run};

/// Creating an overlay writes a few clusters; more time means a hung disk.
const OVERLAY: Duration = Duration::from_secs(30);

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
        Self::with(Helper::as_user("qemu-img", User { uid, gid }))
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
        let owner = path.display().to_string();
        let path = path.to_owned();
        let opened = self.foreign.look(&owner, move || open(&path)).await;
        let opened = opened.map_err(|e| format!("{step}: {}", crate::one_line(&e)))?;
        let file = opened.map_err(|e| format!("{step}: {e}"))?;
        Ok(self.foreign.keep(&owner, file))
    }
}

fn open_to_write(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests;
