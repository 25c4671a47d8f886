//! Reads the header of a qcow2 file and refuses unsafe features.
//!
//! Invariant: an accepted file refers to no other file, is not encrypted, uses only features that
//! we know, and its tables lie within the file.
//! Failure: [`Error`] names the first thing that is wrong. Nothing here panics on any bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

mod begin;

pub(super) use begin::{begin, begin_in};

/// First bytes of every qcow file.
pub(super) const MAGIC: &[u8] = b"QFI\xfb";

const HEADER_V2: u64 = 72;
const HEADER_V3: u64 = 104;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
const MAX_L1_ENTRIES: u64 = 4 << 20;
const MAX_REFCOUNT_TABLE: u64 = 8 << 20;
const MAX_SNAPSHOTS: u64 = 65_536;
const SMALLEST_SNAPSHOT: u64 = 40;

/// Only means that reference counts are recomputed when the file is opened for writing.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;
/// What remains after those that are refused by name.
const KNOWN_FEATURES: u64 = DIRTY | COMPRESSION_TYPE | EXTENDED_L2;

const EXTENSION_DATA_FILE: u32 = 0x4441_5441;
const EXTENSION_ENCRYPTION: u32 = 0x0537_be77;

/// Part of a disk that its tables take at most, and what they take of a small one.
const TABLES: (u64, u64) = (1024, 16 << 20);

/// What the tables of a disk of so many bytes may take.
pub(crate) const fn tables(size: u64) -> u64 {
    size / TABLES.0 + TABLES.1
}

/// Whether the content of a disk that begins with `head` is in another file.
pub(crate) fn has_data_file(head: &[u8]) -> bool {
    let header = Header { head, length: 0 };
    header.u32(4) == Ok(3)
        && header
            .u64(72)
            .is_ok_and(|features| features & DATA_FILE != 0)
}

/// Whether an open disk holds only differences from another file. Blocks.
///
/// # Errors
///
/// It cannot be read, or is no qcow2.
pub(crate) fn names_backing_file(file: &File) -> io::Result<bool> {
    let mut head = [0; 16];
    file.read_exact_at(&mut head, 0)?;
    let header = Header {
        head: &head,
        length: 0,
    };
    match header.u64(8) {
        Ok(offset) if head.starts_with(MAGIC) => Ok(offset != 0),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no qcow2")),
    }
}

/// Why a qcow2 file is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file ends before its header does.
    #[error("the header is cut off")]
    CutOff,
    /// Neither 2 nor 3.
    #[error("version {0} is not supported")]
    Version(u32),
    /// Part of the content is in another file: would let an image read files of the node.
    #[error("it names a backing file; flatten it with qemu-img convert")]
    BackingFile,
    /// The content is in another file: would let an image read or write files of the node.
    #[error("it names an external data file")]
    DataFile,
    /// Needs a secret.
    #[error("it is encrypted")]
    Encrypted,
    /// Marked so by QEMU.
    #[error("it is marked as corrupt; repair it with qemu-img check")]
    Corrupt,
    /// Incompatible features of a later QEMU.
    #[error("it needs unknown features (bits {0:#x})")]
    UnknownFeatures(u64),
    /// Neither zlib nor zstd.
    #[error("compression type {0} is unknown")]
    Compression(u8),
    /// A field has a value that no tool writes.
    #[error("its {0} is out of range")]
    OutOfRange(&'static str),
}

/// Checks the header in `head`, the first bytes (64 KiB, or all) of a file of `length` bytes, and
/// returns the size in bytes of the disk in it.
pub(super) fn virtual_size(head: &[u8], length: u64) -> Result<u64, Error> {
    let header = Header { head, length };
    let version = header.u32(4)?;
    if header.u64(8)? != 0 || header.u32(16)? != 0 {
        return Err(Error::BackingFile);
    }
    if header.u32(32)? != 0 {
        return Err(Error::Encrypted);
    }
    let (extensions, features) = match version {
        2 => (HEADER_V2, 0),
        3 => (u64::from(header.u32(100)?), header.features()?),
        other => return Err(Error::Version(other)),
    };
    let cluster_bits = header.u32(20)?;
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(Error::OutOfRange("cluster size"));
    }
    let cluster = 1 << cluster_bits;
    if features & EXTENDED_L2 != 0 && cluster_bits < 14 {
        return Err(Error::OutOfRange("cluster size"));
    }
    header.tables(cluster)?;
    header.extensions(extensions, version, cluster)?;
    header.size(cluster, features)
}

struct Header<'a> {
    head: &'a [u8],
    length: u64,
}

impl Header<'_> {
    fn bytes<const N: usize>(&self, offset: u64) -> Result<[u8; N], Error> {
        usize::try_from(offset)
            .ok()
            .and_then(|offset| self.head.get(offset..)?.first_chunk())
            .copied()
            .ok_or(Error::CutOff)
    }

    fn u32(&self, offset: u64) -> Result<u32, Error> {
        self.bytes(offset).map(u32::from_be_bytes)
    }

    fn u64(&self, offset: u64) -> Result<u64, Error> {
        self.bytes(offset).map(u64::from_be_bytes)
    }

    /// The incompatible features of a version 3 header, if all can be had.
    fn features(&self) -> Result<u64, Error> {
        let features = self.u64(72)?;
        if features & DATA_FILE != 0 {
            return Err(Error::DataFile);
        }
        if features & CORRUPT != 0 {
            return Err(Error::Corrupt);
        }
        if features & !KNOWN_FEATURES != 0 {
            return Err(Error::UnknownFeatures(features & !KNOWN_FEATURES));
        }
        if self.u32(96)? > 6 {
            return Err(Error::OutOfRange("reference count width"));
        }
        if features & COMPRESSION_TYPE != 0 {
            match self.bytes(104)? {
                [0 | 1] => {}
                [other] => return Err(Error::Compression(other)),
            }
        }
        Ok(features)
    }

    fn tables(&self, cluster: u64) -> Result<(), Error> {
        let inside = |offset: u64, bytes: u64, what| {
            let end = offset.checked_add(bytes);
            let fits = end.is_some_and(|end| end <= self.length);
            if offset >= cluster && offset.is_multiple_of(cluster) && fits {
                Ok(())
            } else {
                Err(Error::OutOfRange(what))
            }
        };
        let l1_entries = u64::from(self.u32(36)?);
        if !(1..=MAX_L1_ENTRIES).contains(&l1_entries) {
            return Err(Error::OutOfRange("L1 table"));
        }
        inside(self.u64(40)?, l1_entries * 8, "L1 table")?;

        let refcount_table = u64::from(self.u32(56)?) * cluster;
        if !(1..=MAX_REFCOUNT_TABLE).contains(&refcount_table) {
            return Err(Error::OutOfRange("reference count table"));
        }
        inside(self.u64(48)?, refcount_table, "reference count table")?;

        match u64::from(self.u32(60)?) {
            0 => Ok(()),
            count @ 1..=MAX_SNAPSHOTS => {
                inside(self.u64(64)?, count * SMALLEST_SNAPSHOT, "snapshot table")
            }
            _ => Err(Error::OutOfRange("snapshot table")),
        }
    }

    /// The extensions end within the first cluster and the bytes that we hold.
    fn extensions(&self, start: u64, version: u32, cluster: u64) -> Result<(), Error> {
        let sensible = start.is_multiple_of(8) && start < cluster;
        if !sensible || (version == 3 && start < HEADER_V3) {
            return Err(Error::OutOfRange("header length"));
        }
        let mut at = start;
        while at.saturating_add(8) <= cluster {
            let kind = self.u32(at)?;
            let length = u64::from(self.u32(at + 4)?);
            match kind {
                0 => return Ok(()),
                EXTENSION_DATA_FILE => return Err(Error::DataFile),
                EXTENSION_ENCRYPTION => return Err(Error::Encrypted),
                _ => at = at.saturating_add(8 + length.next_multiple_of(8)),
            }
        }
        if at > cluster {
            return Err(Error::OutOfRange("header extension"));
        }
        Ok(())
    }

    fn size(&self, cluster: u64, features: u64) -> Result<u64, Error> {
        let size = self.u64(24)?;
        let entry = if features & EXTENDED_L2 == 0 { 8 } else { 16 };
        let per_l1_entry = cluster * (cluster / entry);
        let addressable = per_l1_entry.checked_mul(u64::from(self.u32(36)?));
        let fits = addressable.is_none_or(|addressable| size <= addressable);
        if size != 0 && size.is_multiple_of(512) && fits {
            Ok(size)
        } else {
            Err(Error::OutOfRange("virtual size"))
        }
    }
}

#[cfg(test)]
mod tests;
