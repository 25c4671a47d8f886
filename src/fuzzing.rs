//! What the checks of `tests/fuzz` reach of this crate, besides its public modules.
//!
//! Invariant: nothing here is used by a program; each function leads to the code that the daemon
//! runs.
//! Failure: that of the code behind it.

use std::path::Path;

use libvirt::Hypervisor;
use tokio::time::Instant;
use uuid::Uuid;

use crate::images::{self, Convertible, ConvertibleError, Format, FormatError};
use crate::node::facts::Survey;

pub use crate::cri::fuzzing::{Created, create};
pub use crate::images::fuzzing::{Blob, Manifest};
pub use crate::node::facts::{Interface, Reply, of_vmlet_guest};
pub use crate::vm::accelerator::Accelerator;

/// What the QEMU guest agent of a guest answers to the questions of one turn.
pub async fn gather(driver: &impl Hypervisor, domain: Uuid) -> Reply {
    let survey = Survey::default().turn(driver, domain, true, Instant::now());
    survey.await.reply
}

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

/// Judges a whole file that would be converted where the node allows it, of `length` bytes; `read`
/// returns so many of them from an offset on. `None`: it has another format.
pub fn convertible(
    length: u64,
    read: impl FnMut(u64, usize) -> Vec<u8>,
) -> Option<(Convertible, Result<u64, ConvertibleError>)> {
    images::fuzzing::convertible(length, read)
}

/// Reads what a registry says of an image: a manifest or an index.
pub fn manifest(bytes: &[u8]) -> Result<Manifest, String> {
    images::fuzzing::manifest_of(bytes)
}

/// The user that the configuration of an image names.
pub fn user(bytes: &[u8]) -> Result<String, String> {
    images::fuzzing::user_of(bytes)
}

/// The disk in a file that a registry or an image server sends, compressed or a layer; `None`: a
/// layer without one. `dir` is for temporary files.
pub fn disk_in(
    dir: &Path,
    packed: &[u8],
    is_layer: bool,
    max_bytes: u64,
) -> images::Result<Option<Vec<u8>>> {
    images::fuzzing::disk_in(dir, packed, is_layer, max_bytes)
}

/// The first bytes of the disk in the beginning of such a file, and the size of the disk where that
/// is known.
pub fn beginning(packed: &[u8], is_layer: bool) -> Option<(Vec<u8>, Option<u64>)> {
    images::fuzzing::beginning(packed, is_layer)
}
