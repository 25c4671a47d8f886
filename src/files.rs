//! Errors of operations on files and directories of the node.
//!
//! Invariant: the text names the step and the path; the kernel's reason is the source.
//! Failure: none here.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nix::libc::EIO;

/// A file or directory that something could not be done with.
#[derive(Debug, thiserror::Error)]
#[error("{step} {}", path.display())]
pub struct Error {
    /// What was to be done.
    pub step: &'static str,
    /// With what.
    pub path: PathBuf,
    /// The kernel's reason.
    pub source: io::Error,
}

/// Turns the kernel's error into ours, naming the step.
pub fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error { step, path, source }
}

/// Whether the kernel refused because the file system takes no writes: it is full, read-only, or
/// fails.
pub fn is_unwritable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ReadOnlyFilesystem | ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    ) || error.raw_os_error() == Some(EIO)
}
