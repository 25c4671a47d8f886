//! Detects the format of a downloaded file, and decides whether QEMU may read it.
//!
//! Invariant: only a file that this module accepted as a disk enters the store, only one that it
//! accepted as a whole is converted, and QEMU always gets the format found here instead of guessing
//! it. Whatever a server answers would be a raw disk; so one has to begin as disks do, unless the
//! settings take other data.
//! Failure: [`Error`] states what the file is and what to do about it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::convertible::{self, Convertible};
use super::qcow2;

mod signature;

/// Bytes looked at from the beginning of the file.
pub(super) const HEAD: u64 = 64 << 10;
const SECTOR: u64 = 512;

/// Disk formats that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// QEMU's own, version 2 or 3, without any reference to another file.
    Qcow2,
    /// The plain bytes of a disk, ISO 9660 included.
    Raw,
}

impl Format {
    /// The name that QEMU and libvirt use: `qcow2` or `raw`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

impl FromStr for Format {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "qcow2" => Ok(Self::Qcow2),
            "raw" => Ok(Self::Raw),
            _ => Err(()),
        }
    }
}

/// An accepted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    /// How to read it.
    pub format: Format,
    /// Size of the disk that a guest would see, in bytes; a multiple of 512. 0: that of a raw disk
    /// of unknown length.
    pub virtual_size: u64,
}

/// Raw files that do not begin as disks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawData {
    /// They are disks.
    Allow,
    /// They are not: a server may have answered something else.
    Refuse,
}

/// What a store takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    /// Largest virtual size in bytes.
    pub(super) max_virtual_bytes: u64,
    /// Formats that are converted.
    pub(super) convert: Vec<Convertible>,
    /// Raw files without the beginning of a disk.
    pub(super) raw_data: RawData,
}

/// A file that a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    /// As it is.
    Disk(Disk),
    /// After its conversion.
    Convertible {
        /// How to read it.
        from: Convertible,
        /// As of a disk; 0: the first bytes do not show it.
        virtual_size: u64,
    },
}

/// Why a file is refused as a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// A web page where a disk was expected.
    #[error("it is a web page; check that the URL is the file itself and needs no login")]
    WebPage,
    /// A disk or archive format that is not accepted.
    #[error("it is {0}; convert it to qcow2 or raw first")]
    Foreign(&'static str),
    /// A disk format that the node does not convert.
    #[error(
        "it is a {0} disk; convert it to qcow2 or raw first, or add {name:?} to images.convert of \
         the node, so that the node converts such images",
        name = .0.as_str()
    )]
    NotConverted(Convertible),
    /// A disk that may not be converted.
    #[error("{from} refused")]
    Convertible {
        /// Its format.
        from: Convertible,
        /// What is wrong.
        #[source]
        reason: convertible::Error,
    },
    /// Not whole sectors, so not a disk.
    #[error("it is neither qcow2 nor a raw disk: {0} bytes are not a multiple of 512")]
    Sectors(u64),
    /// Raw, and without the beginning of a disk.
    #[error(
        "it has no boot sector, partition table or file system that this node knows, so that it may be \
         any answer of a server: check the URL, convert it to qcow2 first (qemu-img convert -O qcow2), \
         or have an administrator set images.raw_data of the node to \"allow\""
    )]
    NoSignature,
    /// A qcow2 that may not be used.
    #[error("qcow2 refused")]
    Qcow2(#[from] qcow2::Error),
    /// A disk larger than the node allows.
    #[error("its virtual size of {size} bytes is above the limit of {limit}")]
    VirtualSize {
        /// Of the disk.
        size: u64,
        /// Allowed.
        limit: u64,
    },
}

impl Rules {
    /// Judges a file by its first [`HEAD`] bytes, or all that it has, and its length, where that is
    /// known; as [`judge`].
    pub(super) fn judge(&self, head: &[u8], length: Option<u64>) -> Result<Accepted, Error> {
        match Convertible::detect(head) {
            None => {
                let disk = judge(head, length, self.max_virtual_bytes)?;
                let is_unsigned = disk.format == Format::Raw && !signature::is_disk(head);
                if is_unsigned && self.raw_data == RawData::Refuse {
                    return Err(Error::NoSignature);
                }
                Ok(Accepted::Disk(disk))
            }
            Some(from) if self.convert.contains(&from) => {
                self.converted(from, from.beginning(head, length))
            }
            Some(from) => Err(Error::NotConverted(from)),
        }
    }

    /// Looks at an open file. Blocks.
    ///
    /// The outer error is a failed read.
    pub(super) fn inspect(&self, file: &File) -> io::Result<Result<Accepted, Error>> {
        let length = file.metadata()?.len();
        let judged = self.judge(&head_of(file)?, Some(length));
        let Ok(Accepted::Convertible { from, .. }) = judged else {
            return Ok(judged);
        };
        let size = from.virtual_size(length, |offset, most| {
            let mut bytes = vec![0; most];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes)
        })?;
        Ok(self.converted(from, size))
    }

    fn converted(
        &self,
        from: Convertible,
        size: Result<u64, convertible::Error>,
    ) -> Result<Accepted, Error> {
        let virtual_size = size.map_err(|reason| Error::Convertible { from, reason })?;
        within(virtual_size, self.max_virtual_bytes)?;
        Ok(Accepted::Convertible { from, virtual_size })
    }
}

/// The first bytes of a file, as many as say what it is. Blocks.
pub fn head_of(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().min(HEAD);
    let mut head = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut head, 0)?;
    Ok(head)
}

/// Judges a file by its first bytes and its length, where that is known; a raw disk without one has
/// the size 0.
pub(crate) fn judge(head: &[u8], length: Option<u64>, limit: u64) -> Result<Disk, Error> {
    if head.is_empty() {
        return Err(Error::Empty);
    }
    let disk = if head.starts_with(qcow2::MAGIC) {
        Disk {
            format: Format::Qcow2,
            virtual_size: qcow2::virtual_size(head, length.unwrap_or(u64::MAX))?,
        }
    } else {
        if let Some(from) = Convertible::detect(head) {
            return Err(Error::Foreign(from.shown()));
        }
        refuse_foreign(head)?;
        let length = length.unwrap_or_default();
        if !length.is_multiple_of(SECTOR) {
            return Err(Error::Sectors(length));
        }
        Disk {
            format: Format::Raw,
            virtual_size: length,
        }
    };
    within(disk.virtual_size, limit)?;
    Ok(disk)
}

const fn within(size: u64, limit: u64) -> Result<(), Error> {
    if size > limit {
        Err(Error::VirtualSize { size, limit })
    } else {
        Ok(())
    }
}

/// Formats by what is at an offset. A raw disk begins with boot code or zeros, never with
/// these.
const FOREIGN: &[(usize, &[u8], &str)] = &[
    (0, b"COWD", "a VMDK disk of an old kind (COWD)"),
    (
        0,
        b"# Disk DescriptorFile",
        "a VMDK descriptor without its disk",
    ),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], "a VDI disk"),
    (0, b"conectix", "a VHD disk"),
    (0, b"QED\0", "a QED disk"),
    (0, b"WithoutFreeSpace", "a Parallels disk"),
    (0, b"WithouFreSpacExt", "a Parallels disk"),
    (0, b"Bochs Virtual HD Image", "a Bochs disk"),
    (0, b"LUKS\xba\xbe", "an encrypted LUKS volume"),
    (0, &[0x1f, 0x8b], "compressed by gzip"),
    (0, b"\xfd7zXZ\0", "compressed by xz"),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], "compressed by zstd"),
    (0, b"BZh", "compressed by bzip2"),
    (0, &[0x04, 0x22, 0x4d, 0x18], "compressed by lz4"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (257, b"ustar", "a tar archive (an OVA, perhaps)"),
];

fn refuse_foreign(head: &[u8]) -> Result<(), Error> {
    let at = |offset: usize| head.get(offset..).unwrap_or_default();
    if let Some((.., what)) = FOREIGN
        .iter()
        .find(|(o, magic, _)| at(*o).starts_with(magic))
    {
        return Err(Error::Foreign(what));
    }
    let text = head
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(head)
        .trim_ascii_start();
    let begins = |word: &str| {
        text.get(..word.len())
            .is_some_and(|t| t.eq_ignore_ascii_case(word.as_bytes()))
    };
    if ["<!doctype", "<html", "<?xml", "<head"]
        .into_iter()
        .any(begins)
    {
        return Err(Error::WebPage);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
