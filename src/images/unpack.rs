//! Takes the disk out of a downloaded file that is packed: compressed, or a layer of a container
//! disk.
//!
//! Invariant: the bytes of strangers are decoded in a process of its own; this one judges the disk and
//! writes it. Entries are read one after the other and only the disk is written, as a sparse file;
//! memory is bounded, and so is what the file may unpack to. The first bytes of a disk are judged
//! before the rest is written.
//! Failure: [`Error`] by what is wrong; the caller discards what was written.

use std::io::{self, BufReader, Read};

use tokio_util::sync::CancellationToken;

use super::error::{Error, Result};
use super::format::{HEAD, Rules};
use super::partial::{Partial, RoomClaim};
use crate::space::{Claim, Full};

mod apart;
mod decoder;
mod frames;
mod layer;
mod packing;

use apart::{Program, is_failure};
pub use decoder::{Work, run};
use frames::{Content, Frame, odd};
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

/// Why a file is not unpacked.
#[derive(Debug)]
enum Refusal {
    /// By what it has.
    Content(String),
    /// It cannot be read.
    Broken(io::Error),
}

/// Where a disk goes.
trait Sink {
    type Error;

    fn refuse(&self, why: Refusal) -> Self::Error;

    /// Takes a disk; `declared` is its size where a header says it.
    fn take(&mut self, from: &mut dyn Read, declared: Option<u64>) -> Result<(), Self::Error>;
}

/// Writes the disk in `file`, which is read from its beginning, to `disk`, which is empty.
/// `Ok(false)`: a layer without a disk. Blocks; on a thread of a runtime.
pub(super) fn unpack(
    file: impl Read + Send + 'static,
    shape: Shape,
    disk: &mut Partial,
    limits: Limits,
) -> Result<bool> {
    // The program of a test decodes nothing by itself.
    if cfg!(test) {
        return unpack_here(file, shape, disk, limits);
    }
    let program = Program::own().map_err(|e| limits.unread(&e))?;
    unpack_apart(program, file, shape, disk, limits)
}

/// The same by this process: for checks of the decoders.
pub(super) fn unpack_here(
    file: impl Read,
    shape: Shape,
    disk: &mut Partial,
    mut limits: Limits,
) -> Result<bool> {
    let limits = &mut limits;
    decode(file, shape, &mut Writing { disk, limits })
}

fn unpack_apart(
    program: &Program,
    file: impl Read + Send + 'static,
    shape: Shape,
    disk: &mut Partial,
    mut limits: Limits,
) -> Result<bool> {
    let work = match shape {
        Shape::Disk => Work::Disk,
        Shape::Layer => Work::Layer,
    };
    let started = program.start(work, file, limits.max_bytes, limits.stopping.clone());
    let mut decoder = started.map_err(|e| limits.unread(&e))?;
    let mut has_disk = false;
    loop {
        let frame = Frame::read(&mut decoder);
        // What a decoder makes of a part of an input is not what is in it.
        if let Some(input) = decoder.input_error() {
            return Err(limits.unread(&input));
        }
        match frame {
            Ok(Frame::Done(_)) => return Ok(has_disk),
            Ok(Frame::Content(text)) => return Err(limits.content(&text)),
            Ok(Frame::Broken(text)) => return Err(limits.broken(&text)),
            Ok(Frame::Disk(declared)) if !has_disk => {
                has_disk = true;
                let mut content = Explained(&mut decoder);
                let mut content = Content::new(&mut content);
                let written = limits.write(&mut content, declared, disk);
                // A broken disk may be that of an input that ended early.
                written.map_err(|error| match decoder.input_error() {
                    Some(input) => limits.unread(&input),
                    None => error,
                })?;
            }
            Ok(_) => return Err(limits.broken(&odd())),
            Err(error) => return Err(limits.unread(&decoder.reason(error))),
        }
    }
}

/// A decoder whose errors say why it ended.
struct Explained<'a>(&'a mut apart::Decoder);

impl Read for Explained<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer).map_err(|error| self.0.reason(error))?;
        if read == 0 && !buffer.is_empty() {
            Err(self.0.reason(io::ErrorKind::UnexpectedEof.into()))
        } else {
            Ok(read)
        }
    }
}

/// Decodes a file, whose disk goes to the sink. `Ok(false)`: a layer without a disk.
fn decode<S: Sink>(file: impl Read, shape: Shape, sink: &mut S) -> Result<bool, S::Error> {
    match shape {
        Shape::Disk => {
            let mut opened = open(file).map_err(|e| sink.refuse(Refusal::Broken(e)))?;
            sink.take(&mut opened.reader, None)?;
            Ok(true)
        }
        Shape::Layer => layer::decode(file, sink),
    }
}

/// Writes a disk within limits.
struct Writing<'a> {
    disk: &'a mut Partial,
    limits: &'a mut Limits,
}

impl Sink for Writing<'_> {
    type Error = Error;

    fn refuse(&self, why: Refusal) -> Error {
        match why {
            Refusal::Content(text) => self.limits.content(&text),
            Refusal::Broken(error) => self.limits.broken(&error),
        }
    }

    fn take(&mut self, mut from: &mut dyn Read, declared: Option<u64>) -> Result<()> {
        self.limits.write(&mut from, declared, self.disk)
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

/// The first bytes of the disk in the beginning of a packed file. `None` where it shows none. Blocks;
/// on a thread of a runtime.
pub(super) fn head_in(beginning: &[u8], shape: Shape) -> io::Result<Option<Beginning>> {
    if cfg!(test) {
        return Ok(head_here(beginning, shape));
    }
    let work = match shape {
        Shape::Disk => Work::DiskHead,
        Shape::Layer => Work::LayerHead,
    };
    let answer = Program::own()?.answer(work, beginning.to_vec(), BEGINNING);
    // One that makes a decoder crash shows nothing.
    answer.or_else(|error| {
        if is_failure(&error) {
            Err(error)
        } else {
            Ok(None)
        }
    })
}

/// The first bytes of a compressed cluster of qcow2; `None` where there are none. As [`head_in`].
pub(super) fn cluster_in(packed: &[u8], is_zstd: bool) -> Option<Vec<u8>> {
    if cfg!(test) {
        return decoder::cluster_here(packed, is_zstd);
    }
    let work = if is_zstd { Work::Zstd } else { Work::Deflate };
    let answer =
        Program::own().and_then(|program| program.answer(work, packed.to_vec(), decoder::CLUSTER));
    answer.ok()?.map(|beginning| beginning.head)
}

/// The same by this process: for checks of the decoders.
pub(super) fn head_here(beginning: &[u8], shape: Shape) -> Option<Beginning> {
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
            let filled = fill(from, &mut chunk).map_err(|e| self.unread(&e))?;
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
        if bytes > self.max_bytes {
            Err(self.too_large())
        } else {
            Ok(())
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

    /// The file was not unpacked, by what its reader got.
    fn unread(&self, error: &io::Error) -> Error {
        if self.stopping.is_cancelled() {
            Error::Stopping
        } else if is_failure(error) {
            Error::decoder(&self.location, &error.to_string())
        } else {
            self.broken(error)
        }
    }

    /// The file cannot be unpacked.
    fn broken(&self, error: &impl std::fmt::Display) -> Error {
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
