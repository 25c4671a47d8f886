//! Finds out whether files of a file system can have the same blocks, until one of them is written to.
//!
//! Invariant: the kernel is asked to share a block, and its answer counts for that pair of files: whether the next
//! blocks can be shared depends on the file system, its version, its mounts and the attributes of both files, which no list of
//! file systems says. What the attempt has written is removed.
//! Failure: a copy that is written in full; the program does the same where it cannot share a block.
#![allow(unsafe_code)] // The request to the kernel has no safe form; the comment states why it is sound.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// The option by which the program lets the kernel copy. Where the kernel cannot share blocks, it would write zeros
/// that the program leaves out.
pub(super) const SHARE: &str = "-C";

/// How much of a file is shared in an attempt: a multiple of the block of each file system.
const PART: u64 = 64 << 10;

/// Whether `to`, which is empty and stays so, can have the blocks of `from`. Blocks.
pub(super) fn shared(from: &File, to: &File) -> io::Result<bool> {
    let length = from.metadata()?.len();
    let range = libc::file_clone_range {
        src_fd: from.as_raw_fd().into(),
        src_offset: 0,
        // 0: to the end of the file.
        src_length: if length > PART { PART } else { 0 },
        dest_offset: 0,
    };
    // SAFETY: the kernel reads the structure, which is its own and outlives the call; both descriptors are open.
    let cloned = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
    let is_shared = Errno::result(cloned).is_ok();
    to.set_len(0)?;
    Ok(is_shared)
}

/// Whether two files of a directory can have the same blocks; `None`: not known. The files have no names. Blocks.
pub(crate) fn shared_in(directory: &Path) -> Option<bool> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    options.custom_flags(libc::O_TMPFILE);
    let from = options.open(directory).ok()?;
    let to = options.open(directory).ok()?;
    let content = vec![1; usize::try_from(PART).ok()?];
    from.write_all_at(&content, 0).ok()?;
    shared(&from, &to).ok()
}
