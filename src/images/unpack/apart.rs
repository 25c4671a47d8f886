//! Decoders in processes of their own, as the daemon sees them.
//!
//! A thread feeds the decoder with what arrives; the thread of the caller takes what it answers.
//!
//! Invariant: nothing that a decoder answers is trusted: sizes are bounded and disks judged as those of
//! any file. It ends with the call that started it. One that neither takes nor gives anything for
//! [`STALL`] ends, and so does one that uses up its CPU time, or the time that it has once all of its input is
//! there; a download that makes no progress is not its fault.
//! Failure: the image's error for what the decoder refuses, and for its crash. [`Failure`] for all that the
//! node may have caused: a start, a kill, a hang; for an error of the input, too, which goes before all others.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle as Runtime;
use tokio_util::sync::CancellationToken;

use super::decoder::Work;
use super::frames::{Content, Frame, odd};
use super::{Beginning, CHUNK};
use crate::helper::{Child, Helper, Limits, Stream, Streams, has_crashed, limit_that_ended};

/// A decoder that has input, and neither takes nor gives anything for so long, hangs.
const STALL: Duration = Duration::from_secs(120);

/// How often it is looked whether the daemon stops.
const TICK: Duration = Duration::from_secs(1);

/// Its libraries, the window of zstd twice, and the dictionary of xz.
const ADDRESS_SPACE: u64 = 1 << 30;

/// The least that a decoder is expected to give, in bytes per second of CPU time.
const SLOWEST: u64 = 1 << 20;

/// CPU time beside that, in seconds.
const CPU: u64 = 60;

/// The same for a small input that is there as a whole.
const STALL_OF_ANSWER: Duration = Duration::from_secs(30);

static OWN: OnceLock<Program> = OnceLock::new();

/// The process of a decoder failed, or the input: nothing is known of what is in it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Failure(String);

/// What decodes.
pub(super) struct Program {
    pub(super) helper: Helper,
    /// By which it knows its work.
    pub(super) arguments: fn(Work) -> Vec<OsString>,
}

/// A decoder that runs.
#[derive(Debug)]
pub(super) struct Decoder {
    child: Child,
    /// Its user is that of no other run meanwhile.
    _run: Helper,
    socket: UnixStream,
    feeding: Arc<Mutex<Feeding>>,
    /// When it last gave something.
    gave: Instant,
    /// How long it may do nothing.
    stall: Duration,
    /// How long it may take once its input is there, and for each part of it.
    total: Duration,
    stopping: CancellationToken,
}

/// How the thread is that feeds a decoder.
#[derive(Debug, Default)]
struct Feeding {
    /// Since when it waits for the decoder, and not for the input.
    waits: Option<Instant>,
    /// Since when it has nothing to do any more.
    done: Option<Instant>,
    /// Why the input ended early.
    error: Option<io::Error>,
}

impl Program {
    /// The program of this process.
    pub(super) fn own() -> io::Result<&'static Self> {
        if let Some(own) = OWN.get() {
            return Ok(own);
        }
        // A failure is no reason for the next one.
        let helper = Helper::own().map_err(failure("open the program of the daemon"))?;
        let arguments = |work: Work| {
            use clap::ValueEnum as _;
            let work = work.to_possible_value();
            let work = work.map(|value| value.get_name().to_owned());
            vec!["decode".into(), work.unwrap_or_default().into()]
        };
        Ok(OWN.get_or_init(|| Self { helper, arguments }))
    }

    /// Starts it for an input, of which it makes at most so many bytes. Blocks; on a thread of a runtime.
    pub(super) fn start(
        &self,
        work: Work,
        input: impl Read + Send + 'static,
        most: u64,
        stopping: CancellationToken,
    ) -> io::Result<Decoder> {
        let started = self.try_start(work, input, most, stopping);
        started.map_err(failure("start its decoder"))
    }

    fn try_start(
        &self,
        work: Work,
        input: impl Read + Send + 'static,
        most: u64,
        stopping: CancellationToken,
    ) -> io::Result<Decoder> {
        let run = self.helper.for_run().map_err(io::Error::other)?;
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(TICK))?;
        let limits = Limits {
            address_space: ADDRESS_SPACE,
            cpu: CPU + most / SLOWEST,
            // It writes none.
            file: 0,
        };
        let streams = Streams {
            stdin: Stream::Open(theirs.into()),
            ..Streams::default()
        };
        let start = run.start(
            limits,
            Vec::<OwnedFd>::new(),
            (self.arguments)(work),
            streams,
        );
        let child = start.start()?;
        let feeding = Arc::default();
        let feeder = (socket.try_clone()?, Arc::clone(&feeding));
        thread::Builder::new()
            .name("feed decoder".to_owned())
            .spawn(move || feed(input, &feeder.0, &feeder.1))?;
        Ok(Decoder {
            child,
            _run: run,
            socket,
            feeding,
            gave: Instant::now(),
            stall: STALL,
            total: 5 * STALL + Duration::from_secs(most / SLOWEST),
            stopping,
        })
    }

    /// What it makes of a whole input, at most so many bytes; `None`: it finds nothing. Blocks; on a
    /// thread of a runtime.
    pub(super) fn answer(
        &self,
        work: Work,
        input: Vec<u8>,
        most: u64,
    ) -> io::Result<Option<Beginning>> {
        let input = io::Cursor::new(input);
        let mut decoder = self.start(work, input, most, CancellationToken::new())?;
        decoder.stall = STALL_OF_ANSWER;
        let read = decoder.whole(most);
        read.map_err(|error| decoder.reason(error))
    }
}

/// Feeds the decoder on a thread of its own, which ends when the decoder does, or the input.
fn feed(input: impl Read, socket: &UnixStream, feeding: &Mutex<Feeding>) {
    let ended = feed_all(input, socket, feeding);
    {
        let mut feeding = lock(feeding);
        feeding.waits.get_or_insert_with(Instant::now);
        feeding.done = Some(Instant::now());
        feeding.error = ended.err();
    }
    // The decoder learns that its input ends after its reader can know why.
    let _ = socket.shutdown(Shutdown::Write);
}

/// An error is that of the input.
fn feed_all(
    mut input: impl Read,
    mut socket: &UnixStream,
    feeding: &Mutex<Feeding>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        // What has arrived goes on at once.
        let read = match input.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        lock(feeding).waits = Some(Instant::now());
        if socket.write_all(&chunk[..read]).is_err() {
            // It has ended.
            return Ok(());
        }
        lock(feeding).waits = None;
    }
}

fn lock(feeding: &Mutex<Feeding>) -> std::sync::MutexGuard<'_, Feeding> {
    feeding.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Decoder {
    #[cfg(test)]
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    fn whole(&mut self, most: u64) -> io::Result<Option<Beginning>> {
        let length = match Frame::read(self)? {
            Frame::Disk(length) => length,
            Frame::Done(false) => return Ok(None),
            Frame::Broken(text) => return Err(io::Error::new(ErrorKind::InvalidData, text)),
            _ => return Err(odd()),
        };
        let mut head = Vec::new();
        let content = Content::new(self);
        content.take(most + 1).read_to_end(&mut head)?;
        if head.len() as u64 > most {
            Err(odd())
        } else {
            Ok(Some(Beginning { head, length }))
        }
    }

    /// Why an input was not unpacked, by what its reader got.
    pub(super) fn reason(&mut self, error: io::Error) -> io::Error {
        if let Some(error) = self.input_error() {
            return error;
        }
        if error.kind() == ErrorKind::InvalidData {
            return error;
        }
        let has_ended = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        );
        if !has_ended {
            return io::Error::other(Failure(error.to_string()));
        }
        // Its stream has ended, and so does it.
        self.child.kill();
        let wait = async { tokio::time::timeout(STALL, self.child.wait()).await };
        let ended = Runtime::current().block_on(wait);
        let status = ended.ok().and_then(Result::ok);
        let limit = status.and_then(limit_that_ended);
        let how = limit.unwrap_or("ended without an answer: the image may be malformed");
        let how = format!("its decoder {how}");
        if status.is_some_and(has_crashed) {
            io::Error::new(ErrorKind::InvalidData, how)
        } else {
            // The node may have ended it.
            io::Error::other(Failure(how))
        }
    }

    /// Why its input ended early.
    pub(super) fn input_error(&self) -> Option<io::Error> {
        let error = lock(&self.feeding).error.take()?;
        Some(failure("read it")(error))
    }

    /// Whether it has had something to do and done nothing for too long.
    fn hangs(&self) -> bool {
        let waits = lock(&self.feeding).waits;
        waits.is_some_and(|since| since.max(self.gave).elapsed() > self.stall)
    }

    /// Whether its time is over, however little it still gives.
    fn is_late(&self) -> bool {
        let feeding = lock(&self.feeding);
        feeding
            .done
            .or(feeding.waits)
            .is_some_and(|since| since.elapsed() > self.total)
    }
}

/// An error that says nothing of the content of an image.
fn failure(step: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::other(Failure(format!("failed to {step}: {error}")))
}

/// Whether an error says nothing of the content of an image.
pub(super) fn is_failure(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Failure>())
}

fn late(deadline: Duration) -> io::Error {
    let seconds = deadline.as_secs();
    let late = format!("its decoder did not get on within {seconds} s");
    io::Error::new(ErrorKind::TimedOut, late)
}

/// What it answers. A wait ends with the daemon, and with a decoder that hangs.
impl Read for Decoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_late() {
                return Err(late(self.total));
            }
            match self.socket.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => {
                    self.gave = Instant::now();
                    return read;
                }
            }
            if self.stopping.is_cancelled() {
                return Err(io::Error::other("the daemon stops"));
            }
            if self.hangs() {
                return Err(late(self.stall));
            }
        }
    }
}
