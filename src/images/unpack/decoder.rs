//! The program that decodes bytes of strangers: `vmlet decode`, which the daemon starts as a
//! confined helper.
//!
//! Invariant: it reads its input and writes frames on the same stream, and opens nothing.
//! Failure: what is wrong with the input is a frame; a panic, or a daemon that has left, ends the
//! program.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use flate2::read::DeflateDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::frames::Frame;
use super::{Beginning, CHUNK, Refusal, Shape, Sink, decode, fill, head_here};

/// Most bytes of a cluster that are of interest.
pub(in crate::images) const CLUSTER: u64 = 64 << 10;

/// Most bytes of an input that is read as a whole.
const MOST_WHOLE: u64 = 256 << 20;

/// What a decoder is to make of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Work {
    /// The disk in a compressed file.
    Disk,
    /// The disk in a layer.
    Layer,
    /// The first bytes of the disk in the beginning of a compressed file.
    DiskHead,
    /// The first bytes of the disk in the beginning of a layer.
    LayerHead,
    /// The first bytes of a cluster of qcow2.
    Deflate,
    /// The same, by the other compression.
    Zstd,
}

/// Why nothing more is sent.
enum Stop {
    Refused(Refusal),
    /// The daemon has left.
    Output(io::Error),
}

/// Sends what is unpacked.
struct Sending<W>(W);

/// Decodes the standard input. The answer goes to the same stream, which is a socket.
pub fn run(work: Work) -> ExitCode {
    let done = || -> io::Result<()> {
        let socket = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        serve(work, &socket, &socket)
    };
    // Its reader sees the end of the stream.
    done().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Decodes an input.
pub(super) fn serve(work: Work, input: impl Read, output: impl Write) -> io::Result<()> {
    let mut sending = Sending(output);
    let done = match work {
        Work::Disk => decode(input, Shape::Disk, &mut sending),
        Work::Layer => decode(input, Shape::Layer, &mut sending),
        _ => sending.head(work, input),
    };
    let last = match done {
        Ok(found) => Frame::Done(found),
        Err(Stop::Refused(Refusal::Content(text))) => Frame::Content(text),
        Err(Stop::Refused(Refusal::Broken(error))) => Frame::Broken(error.to_string()),
        Err(Stop::Output(error)) => return Err(error),
    };
    last.write(&mut sending.0)
}

/// The first bytes of a compressed cluster; `None` where there are none.
pub(super) fn cluster_here(packed: &[u8], is_zstd: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // What follows a cluster in its last sector may be an error: what came before counts.
    let _behind = if is_zstd {
        StreamingDecoder::new(packed)
            .ok()?
            .take(CLUSTER)
            .read_to_end(&mut bytes)
            .is_ok()
    } else {
        DeflateDecoder::new(packed)
            .take(CLUSTER)
            .read_to_end(&mut bytes)
            .is_ok()
    };
    (!bytes.is_empty()).then_some(bytes)
}

impl<W: Write> Sending<W> {
    fn head(&mut self, work: Work, input: impl Read) -> Result<bool, Stop> {
        let mut whole = Vec::new();
        let read = input.take(MOST_WHOLE).read_to_end(&mut whole);
        read.map_err(|e| Stop::Refused(Refusal::Broken(e)))?;
        let cluster = |is_zstd| {
            let length = None;
            cluster_here(&whole, is_zstd).map(|head| Beginning { head, length })
        };
        let found = match work {
            Work::LayerHead | Work::Layer => head_here(&whole, Shape::Layer),
            Work::DiskHead | Work::Disk => head_here(&whole, Shape::Disk),
            Work::Deflate => cluster(false),
            Work::Zstd => cluster(true),
        };
        let Some(Beginning { head, length }) = found else {
            return Ok(false);
        };
        self.take(&mut head.as_slice(), length)?;
        Ok(true)
    }
}

impl<W: Write> Sink for Sending<W> {
    type Error = Stop;

    fn refuse(&self, why: Refusal) -> Stop {
        Stop::Refused(why)
    }

    fn take(&mut self, from: &mut dyn Read, declared: Option<u64>) -> Result<(), Stop> {
        let output = &mut self.0;
        Frame::Disk(declared).write(output).map_err(Stop::Output)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let filled = fill(&mut &mut *from, &mut chunk);
            let filled = filled.map_err(|e| Stop::Refused(Refusal::Broken(e)))?;
            if filled == 0 {
                return Frame::End.write(output).map_err(Stop::Output);
            }
            let sent = Frame::Data(filled).write(output);
            let sent = sent.and_then(|()| output.write_all(&chunk[..filled]));
            sent.map_err(Stop::Output)?;
        }
    }
}
