//! Takes the disk out of a downloaded file that is packed: compressed, or a layer of a container
//! disk.
//!
//! Invariant: the bytes of strangers are decoded in a process of its own; this one judges the disk and
//! writes it. Entries are read one after the other and only the disk is written, as a sparse file;
//! memory is bounded, and so is what the file may unpack to. The first bytes of a disk are judged
//! before the rest is written.
//! Failure: [`Error`] by what is wrong; the caller discards what was written.

use std::io::{self, BufReader, Read};

use super::error::{Error, Result};
use super::partial::Partial;

mod apart;
mod beginning;
mod decoder;
mod frames;
mod layer;
mod limits;
mod packing;

use apart::Program;
pub(super) use beginning::{Beginning, cluster_in, head_here, head_in};
pub use decoder::{Work, run};
use frames::{Content, Frame, odd};
pub(super) use limits::Limits;
pub(super) use packing::Packing;

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
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

impl Shape {
    /// Whether a file of this shape that begins with `head` is to be unpacked.
    pub(super) fn is_packed(self, head: &[u8]) -> bool {
        self == Self::Layer || Packing::detect(head).is_some()
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

/// What is in a file, compressed or not.
struct Opened<'a> {
    reader: Box<dyn Read + 'a>,
    is_packed: bool,
}

fn open<'a>(mut file: impl Read + 'a) -> io::Result<Opened<'a>> {
    // A file that arrives in small pieces shows its kind late.
    let mut first = [0; MAGIC];
    let filled = fill(&mut file, &mut first)?;
    let packing = Packing::detect(&first[..filled]);
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
