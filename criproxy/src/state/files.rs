//! Files that are complete or count as lost, and are replaced in one step.
//!
//! ```text
//! magic and version (8) | length of boot id (1) | boot id | payload | SHA-256 of all before (32)
//! ```
//!
//! Invariant: a reader of a file sees an old content or a new one; a file of which a byte is
//! missing or different is [`Damage`], never a shorter content.
//! Failure: `io::Error` from the file system; a file of another version is damage too.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// What a file begins with; the last byte is the version.
const MAGIC: &[u8; 8] = b"VMLTCRP\x01";

const DIGEST_LEN: usize = 32;

/// Largest file that is read.
const MAX_FILE: u64 = 128 * 1024 * 1024;

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    /// The boot in which it was written.
    pub(super) boot_id: String,
    /// What it says.
    pub(super) payload: Bytes,
}

/// Why a file has no usable content.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    /// It is not there.
    #[error("there is no such file")]
    Missing,
    /// It is not what we have written.
    #[error("it is damaged or of another version")]
    Damaged,
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// Makes the directory, for our user only, with its parents.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Content, Damage> {
    let file = File::open(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => Damage::Missing,
        _ => Damage::Read(source),
    })?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(Damage::Read)?;
    decode(bytes).ok_or(Damage::Damaged)
}

/// Replaces a file. When it returns, the new content survives a power cut.
pub(super) fn replace(path: &Path, boot_id: &str, payload: &[u8]) -> io::Result<()> {
    let temporary = path.with_added_extension("tmp");
    service::files::replace(path, &temporary, &encode(boot_id, payload))
}

/// What a file with that content holds.
pub(super) fn encode(boot_id: &str, payload: &[u8]) -> Vec<u8> {
    let boot_id = boot_id.as_bytes();
    let length = u8::try_from(boot_id.len()).unwrap_or(u8::MAX);
    let mut bytes = Vec::with_capacity(payload.len() + 64 + DIGEST_LEN);
    bytes.extend_from_slice(MAGIC);
    bytes.push(length);
    bytes.extend_from_slice(&boot_id[..usize::from(length)]);
    bytes.extend_from_slice(payload);
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

fn decode(bytes: Vec<u8>) -> Option<Content> {
    let end = bytes.len().checked_sub(DIGEST_LEN)?;
    let (body, digest) = bytes.split_at(end);
    if Sha256::digest(body).as_slice() != digest {
        return None;
    }
    let (length, rest) = body.strip_prefix(MAGIC)?.split_first()?;
    let boot_id = std::str::from_utf8(rest.get(..usize::from(*length))?)
        .ok()?
        .to_owned();
    let start = MAGIC.len() + 1 + usize::from(*length);
    Some(Content {
        boot_id,
        payload: Bytes::from(bytes).slice(start..end),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_file_is_read_as_it_was_written_or_not_at_all(
            boot_id in "[ -~]{0,40}",
            payload: Vec<u8>,
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
            more: Vec<u8>,
        ) {
            let whole = encode(&boot_id, &payload);
            let expected = Content { boot_id, payload: payload.into() };
            prop_assert_eq!(decode(whole.clone()), Some(expected));
            let mut changed = whole.clone();
            changed[at.index(whole.len())] ^= 1 << bit;
            prop_assert_eq!(decode(changed), None);
            prop_assert_eq!(decode(whole[..at.index(whole.len())].to_vec()), None);
            prop_assume!(!more.is_empty());
            prop_assert_eq!(decode([whole, more].concat()), None);
        }

        #[test]
        fn a_file_of_another_program_is_none(body: Vec<u8>, length: u8, is_ours: bool) {
            let mut bytes = if is_ours { MAGIC.to_vec() } else { Vec::new() };
            bytes.push(length);
            bytes.extend(&body);
            let digest = Sha256::digest(&bytes);
            bytes.extend(digest);
            if let Some(content) = decode(bytes) {
                prop_assert!(is_ours || [&[length], &body[..]].concat().starts_with(MAGIC));
                prop_assert!(content.boot_id.len() + content.payload.len() <= body.len());
            }
        }
    }
}
