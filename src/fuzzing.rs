//! What the checks of `tests/fuzz` reach of this crate, besides its public modules.
//!
//! Invariant: nothing here is used by a program; each function leads to the code that the daemon
//! runs.
//! Failure: that of the code behind it.

use crate::images::{self, Format, FormatError};

pub use crate::cri::fuzzing::{Created, create};
pub use crate::node::facts::{Interface, Reply, gather, of_vmlet_guest};
pub use crate::vm::accelerator::Accelerator;

/// Where an image is by the rules of a file of translations; the outer error is that of the file.
pub fn mapped(file: &str, name: &images::Name) -> Result<images::Result<String>, String> {
    images::fuzzing::mapped(file, name)
}

/// Judges a file by its first bytes and its length, where that is known; returns its format and the
/// size of the disk in it.
pub fn judge(head: &[u8], length: Option<u64>, limit: u64) -> Result<(Format, u64), FormatError> {
    let disk = images::judge(head, length, limit)?;
    Ok((disk.format, disk.virtual_size))
}
