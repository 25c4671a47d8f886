//! Reads the header, the embedded descriptor and the footer of a VMDK file.
//!
//! Invariant: an accepted file is one sparse extent whose descriptor is inside and names one
//! extent, without a directory; it has no parent, and its grain directory lies within the file. The
//! footer, which counts where there is one, says the same as the header.
//! Failure: [`Error`].

use std::io;

use super::{Error, Fault, Fields, Parts};

mod descriptor;

/// First bytes of a sparse extent.
pub(super) const MAGIC: &[u8] = b"KDMV";

const SECTOR: u64 = 512;
/// Where the descriptor begins: QEMU looks for a parent here, whatever the header says.
const DESCRIPTOR: usize = 512;
/// Most sectors of a descriptor, and what QEMU reads of it.
const DESCRIPTOR_SECTORS: u64 = 20;
/// What is read of a file's beginning.
const BEGINNING: usize = 512 + 20 * 512;
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;

/// The bytes that a transfer as text would have changed are there.
const NEWLINES: u32 = 1;
const SECOND_DIRECTORY: u32 = 1 << 1;
const ZERO_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;
const KNOWN: u32 = NEWLINES | SECOND_DIRECTORY | ZERO_GRAINS | COMPRESSED | MARKERS;

/// The grain directory is where the footer says.
const AT_END: u64 = u64::MAX;
/// Sectors of a grain: 4 KiB to 2 MiB.
const GRAIN: std::ops::RangeInclusive<u64> = 8..=4096;
const TABLE_ENTRIES: u32 = 512;
const MAX_DIRECTORY_ENTRIES: u64 = 4 << 20;

/// Marker, footer and end of the stream, a sector each.
const FOOTER: u64 = 3 * SECTOR;
const FOOTER_MARKER: u32 = 3;

/// Checks the beginning of a file; returns the size of its disk in bytes.
pub(super) fn beginning(head: &[u8], length: u64) -> Result<u64, Error> {
    let header = Header::read(Fields(head), length)?;
    header.descriptor(head)?;
    Ok(header.bytes)
}

/// Checks a whole file; returns the size of its disk in bytes.
pub(super) fn virtual_size<R: FnMut(u64, usize) -> io::Result<Vec<u8>>>(
    parts: &mut Parts<R>,
) -> Result<u64, Fault> {
    let head = parts.up_to(0, BEGINNING)?;
    let length = parts.length;
    let bytes = beginning(&head, length)?;
    let header = Header::read(Fields(&head), length)?;
    if header.directory == AT_END {
        let start = length.checked_sub(FOOTER).ok_or(Error::CutOff)?;
        if !length.is_multiple_of(SECTOR) {
            return Err(Error::Malformed("footer").into());
        }
        let tail = parts.up_to(start, BEGINNING)?;
        header.footer(Fields(&tail), length)?;
    }
    Ok(bytes)
}

/// What counts of a header.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    version: u32,
    flags: u32,
    /// Size of the disk.
    bytes: u64,
    /// In sectors.
    grain: u64,
    /// Sector of the grain directory.
    directory: u64,
    descriptor_sectors: u64,
}

impl Header {
    fn read(fields: Fields<'_>, length: u64) -> Result<Self, Error> {
        if !fields.0.starts_with(MAGIC) {
            return Err(Error::Malformed("header"));
        }
        let version = fields.u32(4)?;
        if !VERSIONS.contains(&version) {
            return Err(Error::Version(version));
        }
        let flags = fields.u32(8)?;
        if flags & !KNOWN != 0 {
            return Err(Error::UnknownFeatures(flags & !KNOWN));
        }
        if flags & NEWLINES != 0 && fields.bytes(73)? != *b"\n \r\n" {
            return Err(Error::Malformed("header"));
        }
        let is_compressed = match fields.u16(77)? {
            0 => false,
            1 => true,
            _ => return Err(Error::OutOfRange("compression")),
        };
        let says_so = |flag| (flags & flag != 0) == is_compressed;
        if !says_so(COMPRESSED) || !says_so(MARKERS) {
            return Err(Error::OutOfRange("compression"));
        }
        // Without a capacity, QEMU takes the descriptor for that of a disk in other files.
        let bytes = fields
            .u64(12)?
            .checked_mul(SECTOR)
            .filter(|bytes| *bytes > 0);
        let header = Self {
            version,
            flags,
            bytes: bytes.ok_or(Error::OutOfRange("capacity"))?,
            grain: fields.u64(20)?,
            directory: fields.u64(56)?,
            descriptor_sectors: fields.u64(36)?,
        };
        if !GRAIN.contains(&header.grain) || !header.grain.is_power_of_two() {
            return Err(Error::OutOfRange("grain size"));
        }
        if fields.u32(44)? != TABLE_ENTRIES {
            return Err(Error::OutOfRange("grain table"));
        }
        if fields.u64(64)? > length / SECTOR {
            return Err(Error::CutOff);
        }
        header.directories(fields.u64(48)?, length)?;
        match (fields.u64(28)?, header.descriptor_sectors) {
            (0, _) => Err(Error::OtherFile),
            (1, 1..=DESCRIPTOR_SECTORS) => Ok(header),
            _ => Err(Error::OutOfRange("descriptor")),
        }
    }

    /// The grain directories lie within the file.
    fn directories(&self, second: u64, length: u64) -> Result<(), Error> {
        let wrong = Error::OutOfRange("grain directory");
        let entries = self
            .bytes
            .div_ceil(self.grain * SECTOR * u64::from(TABLE_ENTRIES));
        if entries > MAX_DIRECTORY_ENTRIES {
            return Err(wrong);
        }
        let is_inside = |sector: u64| {
            let start = sector.checked_mul(SECTOR);
            let end = start.and_then(|start| start.checked_add(entries * 4));
            sector > 0 && end.is_some_and(|end| end <= length)
        };
        let first = match self.directory {
            AT_END => self.flags & COMPRESSED != 0,
            sector => is_inside(sector),
        };
        let has_second = self.flags & SECOND_DIRECTORY != 0 && second != 0;
        if first && (!has_second || is_inside(second)) {
            Ok(())
        } else {
            Err(wrong)
        }
    }

    fn descriptor(&self, head: &[u8]) -> Result<(), Error> {
        let sectors = usize::try_from(self.descriptor_sectors * SECTOR).unwrap_or(usize::MAX);
        Fields(head).part(DESCRIPTOR, sectors)?;
        let read_by_qemu = &head[DESCRIPTOR..head.len().min(BEGINNING)];
        descriptor::check(read_by_qemu, self.bytes / SECTOR, self.grain)
    }

    /// The footer takes the place of the header.
    fn footer(&self, tail: Fields<'_>, length: u64) -> Result<(), Error> {
        let marker = |at: usize| Ok::<_, Error>((tail.u32(at + 8)?, tail.u32(at + 12)?));
        let is_end = marker(1024)? == (0, 0) && tail.u64(1024)? == 0;
        if marker(0)? != (0, FOOTER_MARKER) || !is_end {
            return Err(Error::Malformed("footer"));
        }
        let footer = Self::read(tail.from(512)?, length)?;
        let same = Self {
            directory: self.directory,
            descriptor_sectors: self.descriptor_sectors,
            ..footer
        };
        if same == *self && footer.directory != AT_END {
            Ok(())
        } else {
            Err(Error::Malformed("footer"))
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
