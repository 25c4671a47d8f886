//! Disks of other programs that the daemon converts to qcow2 where the node allows it: VMDK and
//! VHDX.
//!
//! Invariant: a program opens only a file that was accepted here as a whole: it is one disk in one
//! file, refers to no other file, has no log to replay, and its tables lie within the file.
//! Failure: [`Error`] names the first thing that is wrong. Nothing here panics on any bytes.

use std::fmt;
use std::io;

mod vhdx;
mod vmdk;

/// Formats that the daemon converts to qcow2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convertible {
    /// Of VMware: one file with its descriptor inside (`monolithicSparse`, `streamOptimized`).
    Vmdk,
    /// Of Hyper-V: without a parent.
    Vhdx,
}

/// Why a file of such a format is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file ends before its header does.
    #[error("the header is cut off")]
    CutOff,
    /// One that we do not know.
    #[error("version {0} is not supported")]
    Version(u32),
    /// Features that we do not know.
    #[error("it needs unknown features (bits {0:#x})")]
    UnknownFeatures(u32),
    /// Part of the content is in a parent disk: would let an image read files of the node.
    #[error("it has a parent disk; flatten it with qemu-img convert")]
    Parent,
    /// The content is elsewhere: would let an image read files of the node.
    #[error("its content is in other files; make one file of it with qemu-img convert")]
    OtherFile,
    /// It was not closed.
    #[error("its log has changes that are not in the disk; open and close it with its own program")]
    Log,
    /// A field has a value that no tool writes.
    #[error("its {0} is out of range")]
    OutOfRange(&'static str),
    /// A structure is not as the specification has it.
    #[error("its {0} is malformed")]
    Malformed(&'static str),
}

impl Convertible {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Vmdk, Self::Vhdx];

    /// The name that QEMU and the settings use: `vmdk` or `vhdx`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vmdk => "vmdk",
            Self::Vhdx => "vhdx",
        }
    }

    /// What a message calls it, with its article.
    pub(super) const fn shown(self) -> &'static str {
        match self {
            Self::Vmdk => "a VMDK disk",
            Self::Vhdx => "a VHDX disk",
        }
    }

    /// The format of a file that begins with these bytes.
    pub(super) fn detect(head: &[u8]) -> Option<Self> {
        let magic = |format: &Self| match format {
            Self::Vmdk => vmdk::MAGIC,
            Self::Vhdx => vhdx::MAGIC,
        };
        let found = Self::ALL.iter().find(|f| head.starts_with(magic(f)));
        found.copied()
    }

    /// Checks as much as the first bytes of a file (64 KiB, or all) show; returns the size of the
    /// disk in bytes, 0 where they do not show it.
    pub(super) fn beginning(self, head: &[u8], length: Option<u64>) -> Result<u64, Error> {
        match self {
            Self::Vmdk => vmdk::beginning(head, length.unwrap_or(u64::MAX)),
            Self::Vhdx => vhdx::beginning(length.unwrap_or(u64::MAX)).map(|()| 0),
        }
    }

    /// Checks a file of `length` bytes; returns the size of the disk in bytes. `read` returns so
    /// many bytes from an offset on, which lie within the file. The outer error is that of `read`.
    pub(super) fn virtual_size(
        self,
        length: u64,
        read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
    ) -> io::Result<Result<u64, Error>> {
        let mut part = Parts { length, read };
        let checked = match self {
            Self::Vmdk => vmdk::virtual_size(&mut part),
            Self::Vhdx => vhdx::virtual_size(&mut part),
        };
        match checked {
            Ok(size) => Ok(Ok(size)),
            Err(Fault::Refused(error)) => Ok(Err(error)),
            Err(Fault::Unread(error)) => Err(error),
        }
    }
}

impl fmt::Display for Convertible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vmdk => "VMDK",
            Self::Vhdx => "VHDX",
        })
    }
}

/// Why a check ended early.
#[derive(Debug)]
enum Fault {
    Refused(Error),
    Unread(io::Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// A file, read in parts.
struct Parts<R> {
    length: u64,
    read: R,
}

impl<R: FnMut(u64, usize) -> io::Result<Vec<u8>>> Parts<R> {
    /// As many bytes from an offset on as there are, `most` at most.
    fn up_to(&mut self, offset: u64, most: usize) -> Result<Vec<u8>, Fault> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        (self.read)(offset, most.min(left)).map_err(Fault::Unread)
    }
}

/// Bytes with numbers, the least significant byte first.
#[derive(Debug, Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// What begins at an offset.
    fn from(self, offset: usize) -> Result<Self, Error> {
        self.0.get(offset..).map(Fields).ok_or(Error::CutOff)
    }

    fn bytes<const N: usize>(self, offset: usize) -> Result<[u8; N], Error> {
        let there = self.from(offset)?.0.first_chunk();
        there.copied().ok_or(Error::CutOff)
    }

    fn part(self, offset: usize, length: usize) -> Result<&'a [u8], Error> {
        self.from(offset)?.0.get(..length).ok_or(Error::CutOff)
    }

    fn u16(self, offset: usize) -> Result<u16, Error> {
        self.bytes(offset).map(u16::from_le_bytes)
    }

    fn u32(self, offset: usize) -> Result<u32, Error> {
        self.bytes(offset).map(u32::from_le_bytes)
    }

    fn u64(self, offset: usize) -> Result<u64, Error> {
        self.bytes(offset).map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
