//! Takes the disk out of a downloaded file that is packed: compressed, or a layer of a container
//! disk.
//!
//! Invariant: entries are read one after the other and only the disk is written, as a sparse file;
//! memory is bounded, and so is what the file may unpack to. The first bytes of a disk are judged
//! before the rest is written.
//! Failure: [`Error`] by what is wrong; the caller discards what was written.

use std::io::{self, BufReader, Read};

use tokio_util::sync::CancellationToken;

use super::error::{Error, Result};
use super::format::{HEAD, Rules};
use super::partial::{Partial, RoomClaim};
use crate::space::{Claim, Full};

mod layer;
mod packing;

pub(super) use packing::Packing;

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
/// Bytes of a disk that the beginning of a packed file is unpacked to at most.
const BEGINNING: u64 = 1 << 20;
/// Bytes that say how a file is compressed.
const MAGIC: usize = 6;

/// What a downloaded file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A disk, perhaps compressed.
    Disk,
    /// A layer of an image, perhaps compressed, with the disk below `disk/`.
    Layer,
}

/// Limits of a disk, and what it claims meanwhile.
#[derive(Debug)]
pub(super) struct Limits {
    /// Host and path of the download, for errors.
    pub(super) location: String,
    /// Largest file.
    pub(super) max_bytes: u64,
    /// Which disks are accepted.
    pub(super) rules: Rules,
    /// Room among the downloads.
    pub(super) room: RoomClaim,
    /// Space on the disk.
    pub(super) space: Claim,
    /// Set when the daemon stops.
    pub(super) stopping: CancellationToken,
}

impl Shape {
    /// Whether a file of this shape that begins with `head` is to be unpacked.
    pub(super) fn is_packed(self, head: &[u8]) -> bool {
        self == Self::Layer || Packing::of(head).is_some()
    }
}

/// Writes the disk in `file`, which is read from its beginning, to `disk`, which is empty.
/// `Ok(false)`: a layer without a disk. Blocks.
pub(super) fn unpack(
    file: impl Read,
    shape: Shape,
    disk: &mut Partial,
    mut limits: Limits,
) -> Result<bool> {
    match shape {
        Shape::Disk => {
            let mut opened = open(file).map_err(|e| limits.broken(&e))?;
            limits.write(&mut opened.reader, None, disk)?;
            Ok(true)
        }
        Shape::Layer => layer::unpack(file, disk, &mut limits),
    }
}

/// What the beginning of a packed file shows of the disk in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// The first bytes of the disk, as far as they are there.
    pub(super) head: Vec<u8>,
    /// Its size, where that is known.
    pub(super) length: Option<u64>,
}

impl Beginning {
    /// Whether the disk can be judged by it.
    pub(super) fn is_enough(&self) -> bool {
        let shown = self.head.len() as u64;
        shown >= HEAD || self.length == Some(shown)
    }
}

/// The first bytes of the disk in the beginning of a packed file. `None` where it shows none.
pub(super) fn head_in(beginning: &[u8], shape: Shape) -> Option<Beginning> {
    match shape {
        Shape::Disk => {
            let mut head = Vec::new();
            // What is missing behind the beginning is an error here.
            let _ = open(beginning)
                .ok()?
                .reader
                .take(BEGINNING)
                .read_to_end(&mut head);
            let length = None;
            (!head.is_empty()).then_some(Beginning { head, length })
        }
        Shape::Layer => layer::head(beginning),
    }
}

/// What is in a file, compressed or not.
struct Opened<'a> {
    reader: Box<dyn Read + 'a>,
    is_packed: bool,
}

fn open<'a>(mut file: impl Read + 'a) -> io::Result<Opened<'a>> {
    // A file that arrives in small pieces shows its kind late.
    let mut first = [0; MAGIC];
    let filled = fill(&mut file, &mut first)?;
    let packing = Packing::of(&first[..filled]);
    let whole = io::Cursor::new(first).take(filled as u64).chain(file);
    let buffered = BufReader::with_capacity(CHUNK, whole);
    Ok(Opened {
        is_packed: packing.is_some(),
        reader: match packing {
            Some(packing) => packing.reader(buffered),
            None => Box::new(buffered),
        },
    })
}

impl Limits {
    /// Writes a disk; `declared` is its size where a header says it.
    fn write(
        &mut self,
        from: &mut impl Read,
        declared: Option<u64>,
        disk: &mut Partial,
    ) -> Result<()> {
        self.fits(declared.unwrap_or_default())?;
        let mut judged = false;
        let mut chunk = vec![0; CHUNK];
        loop {
            if self.stopping.is_cancelled() {
                return Err(Error::Stopping);
            }
            let filled = fill(from, &mut chunk).map_err(|e| self.broken(&e))?;
            let bytes = &chunk[..filled];
            if !judged {
                judged = true;
                self.judge(bytes, declared, filled < CHUNK)?;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let size = disk.received() + filled as u64;
            self.fits(size)?;
            self.claim(size.max(declared.unwrap_or_default()), disk)?;
            disk.append_sparse(bytes)
                .map_err(|e| self.unwritten(e, disk))?;
        }
    }

    /// Refuses a disk by its first bytes.
    fn judge(&self, bytes: &[u8], declared: Option<u64>, is_all: bool) -> Result<()> {
        let head = &bytes[..bytes.len().min(usize::try_from(HEAD).unwrap_or(usize::MAX))];
        let length = declared.or(is_all.then_some(bytes.len() as u64));
        let judged = self.rules.judge(head, length);
        judged.map(drop).map_err(|reason| Error::Format {
            location: self.location.clone(),
            reason,
        })
    }

    fn fits(&self, bytes: u64) -> Result<()> {
        match bytes > self.max_bytes {
            true => Err(self.too_large()),
            false => Ok(()),
        }
    }

    fn claim(&mut self, bytes: u64, disk: &Partial) -> Result<()> {
        let crowded = |full: super::partial::Full| Error::Crowded { limit: full.limit };
        self.room.at_least(bytes).map_err(crowded)?;
        match self.space.at_least(bytes) {
            Ok(()) => Ok(()),
            Err(full @ Full::NoSpace { .. }) => Err(Error::NoSpace {
                dir: disk.dir(),
                because: full.because(),
                required: full.required(),
            }),
            Err(Full::Measure(error)) => Err(self.unwritten(error, disk)),
        }
    }

    fn unwritten(&self, error: io::Error, disk: &Partial) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
                dir: disk.dir(),
                because: String::new(),
                required: 0,
            },
            _ => Error::io("write the disk in", disk.dir())(error),
        }
    }

    fn too_large(&self) -> Error {
        Error::TooLarge {
            location: self.location.clone(),
            limit: self.max_bytes,
        }
    }

    /// The file cannot be unpacked.
    fn broken(&self, error: &io::Error) -> Error {
        self.content(&format!("it cannot be unpacked: {error}"))
    }

    fn content(&self, reason: &str) -> Error {
        Error::content(&self.location, reason)
    }
}

/// Reads until the buffer is full or the end is reached.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
