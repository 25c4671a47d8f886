//! Reads the headers, region tables and metadata of a VHDX file.
//!
//! Invariant: an accepted file has no parent and an empty log; its regions lie within the file,
//! apart from each other, and the block allocation table has an entry for each block of the disk.
//! QEMU checks the checksums: a copy that it does not take makes it refuse the file.
//! Failure: [`Error`].

use std::io;
use std::ops::Range;

use uuid::Uuid;

use super::{Error, Fault, Fields, Parts};

/// First bytes of every file.
pub(super) const MAGIC: &[u8] = b"vhdxfile";

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const HEADERS: [usize; 2] = [64 * KIB, 128 * KIB];
const TABLES: [usize; 2] = [192 * KIB, 256 * KIB];
/// All of the copies above.
const BEGINNING: usize = 320 * KIB;
const VERSION: u16 = 1;
const MAX_REGIONS: usize = 64;
/// Bytes of an entry of both tables.
const ENTRY: usize = 32;

const BLOCKS_REGION: Uuid = Uuid::from_u128(0x2dc2_7766_f623_4200_9d64_115e_9bfd_4a08);
const METADATA_REGION: Uuid = Uuid::from_u128(0x8b7c_a206_4790_4b9a_b8fe_575f_050f_886e);

/// What is read of the metadata; tools write less than half of it.
const METADATA: usize = 1 << 20;
const METADATA_TABLE: usize = 64 * KIB;
const MAX_ITEMS: usize = 1023;
const ITEM_REQUIRED: u32 = 1 << 2;

const FILE_PARAMETERS: Uuid = Uuid::from_u128(0xcaa1_6737_fa36_4d43_b3b6_33f0_aa44_e76b);
const DISK_SIZE: Uuid = Uuid::from_u128(0x2fa5_4224_cd1b_4876_b211_5dbe_d83b_f4b8);
const DISK_ID: Uuid = Uuid::from_u128(0xbeca_12ab_b2e6_4523_93ef_c309_e000_c746);
const LOGICAL_SECTOR: Uuid = Uuid::from_u128(0x8141_bf1d_a96f_4709_ba47_f233_a8fa_ab5f);
const PHYSICAL_SECTOR: Uuid = Uuid::from_u128(0xcda3_48c7_445d_4471_9cc9_e988_5251_c556);
const PARENT_LOCATOR: Uuid = Uuid::from_u128(0xa8d3_5f2d_b30b_454d_abf7_d3d8_4834_ab0c);

const HAS_PARENT: u32 = 1 << 1;
const KNOWN_PARAMETERS: u32 = 1 | HAS_PARENT;
/// Sectors that a block with the bitmap of other blocks describes.
const SECTORS_IN_CHUNK: u64 = 1 << 23;

/// Checks that a file can be one.
pub(super) const fn beginning(length: u64) -> Result<(), Error> {
    if length < MIB {
        Err(Error::CutOff)
    } else {
        Ok(())
    }
}

/// Checks a whole file; returns the size of its disk in bytes.
pub(super) fn virtual_size<R: FnMut(u64, usize) -> io::Result<Vec<u8>>>(
    parts: &mut Parts<R>,
) -> Result<u64, Fault> {
    let head = parts.up_to(0, BEGINNING)?;
    log(Fields(&head))?;
    let regions = Regions::read(Fields(&head), parts.length)?;
    let metadata = &regions.metadata;
    let most = usize::try_from(metadata.end - metadata.start).unwrap_or(usize::MAX);
    let metadata = parts.up_to(metadata.start, most.min(METADATA))?;
    let geometry = Geometry::read(Fields(&metadata))?;
    let entries = (regions.blocks.end - regions.blocks.start) / 8;
    if geometry.entries() <= entries {
        Ok(geometry.size)
    } else {
        Err(Error::OutOfRange("block allocation table").into())
    }
}

/// The header that counts, the one with the higher number, has no log.
fn log(head: Fields<'_>) -> Result<(), Error> {
    let mut latest = None;
    for at in HEADERS {
        let header = head.from(at)?;
        if header.0.starts_with(b"head") {
            let number = header.u64(8)?;
            if header.u16(66)? != VERSION {
                return Err(Error::Version(header.u16(66)?.into()));
            }
            let is_empty = header.bytes(48)? == [0; 16];
            latest = match latest {
                Some((other, _)) if other > number => latest,
                Some((other, empty)) if other == number => Some((number, is_empty && empty)),
                _ => Some((number, is_empty)),
            };
        }
    }
    match latest {
        Some((_, true)) => Ok(()),
        Some((_, false)) => Err(Error::Log),
        None => Err(Error::Malformed("header")),
    }
}

/// Parts of the file.
struct Regions {
    /// The block allocation table.
    blocks: Range<u64>,
    metadata: Range<u64>,
}

impl Regions {
    fn read(head: Fields<'_>, length: u64) -> Result<Self, Error> {
        let malformed = Error::Malformed("region table");
        let table = head.from(TABLES[0])?;
        let count = usize::try_from(table.u32(8)?).unwrap_or(usize::MAX);
        if !table.0.starts_with(b"regi") || count > MAX_REGIONS {
            return Err(malformed);
        }
        let bytes = 16 + count * ENTRY;
        if table.part(0, bytes)? != head.part(TABLES[1], bytes)? {
            return Err(malformed);
        }
        let mut blocks = None;
        let mut metadata = None;
        for n in 0..count {
            let entry = table.from(16 + n * ENTRY)?;
            let place = match Uuid::from_bytes_le(entry.bytes(0)?) {
                BLOCKS_REGION => &mut blocks,
                METADATA_REGION => &mut metadata,
                _ if entry.u32(28)? & 1 == 0 => continue,
                _ => return Err(Error::UnknownFeatures(1)),
            };
            let region = region(entry.u64(16)?, entry.u32(24)?, length)?;
            if place.replace(region).is_some() {
                return Err(malformed);
            }
        }
        let blocks = blocks.ok_or(malformed)?;
        let metadata = metadata.ok_or(malformed)?;
        if blocks.start < metadata.end && metadata.start < blocks.end {
            Err(malformed)
        } else {
            Ok(Self { blocks, metadata })
        }
    }
}

/// Whole mebibytes behind the first one, within the file.
fn region(start: u64, bytes: u32, length: u64) -> Result<Range<u64>, Error> {
    let bytes = u64::from(bytes);
    let end = start.checked_add(bytes).filter(|end| *end <= length);
    let is_whole = start.is_multiple_of(MIB) && bytes.is_multiple_of(MIB);
    match end {
        Some(end) if is_whole && start > 0 && bytes > 0 => Ok(start..end),
        _ => Err(Error::OutOfRange("region table")),
    }
}

/// How the disk is laid out.
#[derive(Debug, Default)]
struct Geometry {
    size: u64,
    block: u64,
    sector: u64,
}

impl Geometry {
    fn read(metadata: Fields<'_>) -> Result<Self, Error> {
        let malformed = Error::Malformed("metadata table");
        let count = usize::from(metadata.u16(10)?);
        if !metadata.0.starts_with(b"metadata") || count > MAX_ITEMS {
            return Err(malformed);
        }
        let mut found = Self::default();
        let mut seen = Vec::new();
        for n in 0..count {
            let entry = metadata.from(ENTRY + n * ENTRY)?;
            let id = Uuid::from_bytes_le(entry.bytes(0)?);
            if seen.contains(&id) {
                return Err(malformed);
            }
            seen.push(id);
            let at = usize::try_from(entry.u32(16)?).unwrap_or(usize::MAX);
            let item = metadata.from(at).map_err(|_| malformed)?;
            let bytes: u32 = match id {
                FILE_PARAMETERS => {
                    found.block = item.u32(0)?.into();
                    parameters(item.u32(4)?)?;
                    8
                }
                DISK_SIZE => {
                    found.size = item.u64(0)?;
                    8
                }
                LOGICAL_SECTOR => {
                    found.sector = item.u32(0)?.into();
                    4
                }
                PARENT_LOCATOR => return Err(Error::Parent),
                DISK_ID => 16,
                PHYSICAL_SECTOR => 4,
                _ if entry.u32(24)? & ITEM_REQUIRED != 0 => {
                    return Err(Error::UnknownFeatures(ITEM_REQUIRED));
                }
                _ => continue,
            };
            if at < METADATA_TABLE || entry.u32(20)? != bytes {
                return Err(malformed);
            }
        }
        found.check()
    }

    fn check(self) -> Result<Self, Error> {
        let least = MIB;
        let most = 256 * MIB;
        if !self.block.is_power_of_two() || !(least..=most).contains(&self.block) {
            return Err(Error::OutOfRange("block size"));
        }
        if ![512, 4096].contains(&self.sector) {
            return Err(Error::OutOfRange("sector size"));
        }
        if self.size > 0 && self.size.is_multiple_of(self.sector) {
            Ok(self)
        } else {
            Err(Error::OutOfRange("virtual size"))
        }
    }

    /// Entries of the block allocation table: one for each block, and one behind each full chunk of
    /// them.
    const fn entries(&self) -> u64 {
        let blocks = self.size.div_ceil(self.block);
        let in_chunk = SECTORS_IN_CHUNK * self.sector / self.block;
        blocks + (blocks - 1) / in_chunk
    }
}

fn parameters(flags: u32) -> Result<(), Error> {
    match flags & !KNOWN_PARAMETERS {
        0 if flags & HAS_PARENT != 0 => Err(Error::Parent),
        0 => Ok(()),
        unknown => Err(Error::UnknownFeatures(unknown)),
    }
}

#[cfg(test)]
pub(super) mod tests;
