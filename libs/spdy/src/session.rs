//! A session of a server: streams that the client opens over one connection.
//!
//! Invariant: one task reads frames, one task writes them; both end with the [`Session`], which
//! holds them. Every stream that is accepted is answered at once. Stream ids are odd and rise.
//! Failure: an error of either task ends both; [`Session::accept`] returns it once.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream as Input, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::codec::{FramedRead, FramedWrite};

pub(crate) mod stream;

use self::stream::{Inlet, Stream};
use crate::codec::{Decoder, Encoder};
use crate::frame::{Frame, GoAwayStatus, Headers, ResetStatus};
use crate::{Error, MAX_PIECE};

/// Frames that wait for the writer.
const OUTGOING: usize = 16;
/// Bytes that are read from the transport, or written to it, at once.
const READ: usize = 64 * 1024;
/// Time for a peer that broke the protocol to take the last frame, which says so.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a session may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most streams at a time; more are refused.
    pub streams: usize,
    /// Bytes that wait for the reader of one stream; at least [`MAX_PIECE`].
    pub buffer: usize,
    /// How long a stream may take no byte while its buffer is full.
    pub stall: Duration,
    /// How long a session may carry nothing in either direction.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 256,
            buffer: 256 * 1024,
            stall: Duration::from_secs(30),
            idle: Duration::from_secs(4 * 3600),
        }
    }
}

/// The server's side of a connection. Dropped, it ends the connection at once.
#[derive(Debug)]
pub struct Session {
    streams: mpsc::Receiver<Stream>,
    outgoing: mpsc::Sender<Frame>,
    reader: JoinSet<Result<(), Error>>,
    writer: JoinSet<Result<(), Error>>,
}

impl Session {
    /// Starts a session over a connection that has been upgraded. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Compression`] when the compression cannot be set up.
    pub fn server<T>(transport: T, limits: Limits) -> Result<Self, Error>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (input, output) = split(transport);
        let input = FramedRead::with_capacity(input, Decoder::default(), READ);
        let mut output = FramedWrite::new(output, Encoder::new()?);
        output.set_backpressure_boundary(READ);
        Ok(Self::over(input, output, limits))
    }

    /// Starts a session over frames that something else carries. Pieces of [`Frame::Data`] have at
    /// most [`MAX_PIECE`] bytes. Must be called within a runtime.
    pub fn over<I, O>(input: I, output: O, limits: Limits) -> Self
    where
        I: Input<Item = Result<Frame, Error>> + Send + 'static,
        O: Sink<Frame, Error = Error> + Send + 'static,
    {
        let (outgoing, frames) = mpsc::channel(OUTGOING);
        let (accepted, streams) = mpsc::channel(limits.streams.max(1));
        let table = Streams {
            open: HashMap::new(),
            places: Arc::new(Semaphore::new(limits.streams)),
            last: 0,
            limits,
            accepted,
            outgoing: outgoing.clone(),
        };
        let written = Arc::new(AtomicU64::new(0));
        let mut reader = JoinSet::new();
        let mut writer = JoinSet::new();
        reader.spawn(read(input, table, Arc::clone(&written)));
        writer.spawn(write(output, frames, written));
        Self {
            streams,
            outgoing,
            reader,
            writer,
        }
    }

    /// The next stream that the client opens; `None` when the client has ended the session.
    ///
    /// # Errors
    ///
    /// [`Error`] when the session failed.
    pub async fn accept(&mut self) -> Result<Option<Stream>, Error> {
        if let Some(stream) = self.streams.recv().await {
            return Ok(Some(stream));
        }
        match self.reader.join_next().await {
            Some(Ok(Err(error))) => {
                if error.is_of_protocol() {
                    // A peer that does not read does not get it.
                    let _ = tokio::time::timeout(FAREWELL, self.writer.join_next()).await;
                }
                Err(error)
            }
            _ => Ok(None),
        }
    }

    /// Sends what streams have written until now, then ends the connection.
    ///
    /// # Errors
    ///
    /// [`Error`] when the rest cannot be sent.
    pub async fn close(mut self) -> Result<(), Error> {
        let goodbye = Frame::GoAway {
            last: 0,
            status: GoAwayStatus::OK,
        };
        // The writer may have ended; its error counts.
        let _ = self.outgoing.send(goodbye).await;
        self.reader.shutdown().await;
        match self.writer.join_next().await {
            Some(Ok(result)) => result,
            _ => Ok(()),
        }
    }
}

/// The streams of a session, as the reading task has them.
#[derive(Debug)]
struct Streams {
    open: HashMap<u32, Inlet>,
    places: Arc<Semaphore>,
    last: u32,
    limits: Limits,
    accepted: mpsc::Sender<Stream>,
    outgoing: mpsc::Sender<Frame>,
}

/// Whether the session continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Frame,
    End,
}

async fn read<I>(input: I, mut streams: Streams, written: Arc<AtomicU64>) -> Result<(), Error>
where
    I: Input<Item = Result<Frame, Error>>,
{
    let mut input = pin!(input);
    loop {
        let before = written.load(Ordering::Relaxed);
        match tokio::time::timeout(streams.limits.idle, input.next()).await {
            Ok(Some(Ok(frame))) => {
                if streams.take(frame).await == Next::End {
                    return Ok(());
                }
            }
            Ok(Some(Err(error))) => {
                if error.is_of_protocol() {
                    let goodbye = streams.goodbye(GoAwayStatus::PROTOCOL_ERROR);
                    // Nothing more can be done for a peer that does not read.
                    let _ = streams.outgoing.try_send(goodbye);
                }
                return Err(error);
            }
            Ok(None) => return Ok(()),
            Err(_) if written.load(Ordering::Relaxed) != before => {}
            Err(_) => return Err(Error::Idle(streams.limits.idle)),
        }
    }
}

impl Streams {
    fn goodbye(&self, status: GoAwayStatus) -> Frame {
        Frame::GoAway {
            last: self.last,
            status,
        }
    }

    /// Handles one frame.
    async fn take(&mut self, frame: Frame) -> Next {
        let answer = match frame {
            Frame::SynStream {
                stream,
                fin,
                headers,
            } => self.opened(stream, fin, headers),
            Frame::Data {
                stream,
                fin,
                content,
            } => self.content(stream, fin, content).await,
            Frame::Headers { stream, fin, .. } => {
                if fin {
                    self.finish(stream);
                }
                None
            }
            Frame::Reset { stream, .. } => {
                if let Some(inlet) = self.open.remove(&stream) {
                    inlet.reset();
                }
                None
            }
            // The client's pings have odd ids; an even one would be the answer to a ping of ours.
            Frame::Ping(id) => (id % 2 == 1).then_some(Frame::Ping(id)),
            // A client that sends it opens no more streams; those that are open continue.
            Frame::GoAway { .. } | Frame::SynReply { .. } | Frame::Ignored(_) => None,
        };
        match answer {
            Some(answer) => match self.outgoing.send(answer).await {
                Ok(()) => Next::Frame,
                Err(_) => Next::End,
            },
            None => Next::Frame,
        }
    }

    fn opened(&mut self, id: u32, fin: bool, headers: Headers) -> Option<Frame> {
        let refused = |status| Some(Frame::Reset { stream: id, status });
        if id.is_multiple_of(2) || id <= self.last {
            return refused(ResetStatus::PROTOCOL_ERROR);
        }
        self.last = id;
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return refused(ResetStatus::REFUSED_STREAM);
        };
        let (stream, inlet) = Stream::new(
            id,
            headers,
            place,
            self.limits.buffer,
            self.outgoing.clone(),
        );
        if self.accepted.try_send(stream).is_err() {
            return refused(ResetStatus::REFUSED_STREAM);
        }
        self.open.insert(id, inlet);
        if fin {
            self.finish(id);
        }
        Some(Frame::SynReply {
            stream: id,
            fin: false,
            headers: Headers::new(),
        })
    }

    /// Content of a stream. That of a stream which no longer exists is dropped.
    async fn content(&mut self, id: u32, fin: bool, content: Bytes) -> Option<Frame> {
        debug_assert!(content.len() <= MAX_PIECE);
        let inlet = self.open.get(&id)?;
        if tokio::time::timeout(self.limits.stall, inlet.send(content))
            .await
            .is_err()
        {
            self.open.remove(&id)?.reset();
            return Some(Frame::Reset {
                stream: id,
                status: ResetStatus::CANCEL,
            });
        }
        if fin {
            self.finish(id);
        }
        None
    }

    fn finish(&mut self, id: u32) {
        if let Some(inlet) = self.open.remove(&id) {
            inlet.finish();
        }
    }
}

/// Writes frames until the last one, `GOAWAY`.
async fn write<O>(
    output: O,
    mut frames: mpsc::Receiver<Frame>,
    written: Arc<AtomicU64>,
) -> Result<(), Error>
where
    O: Sink<Frame, Error = Error>,
{
    let mut output = pin!(output);
    let mut is_last = false;
    while !is_last && let Some(frame) = frames.recv().await {
        is_last = matches!(frame, Frame::GoAway { .. });
        output.feed(frame).await?;
        written.fetch_add(1, Ordering::Relaxed);
        while !is_last && let Ok(frame) = frames.try_recv() {
            is_last = matches!(frame, Frame::GoAway { .. });
            output.feed(frame).await?;
            written.fetch_add(1, Ordering::Relaxed);
        }
        output.flush().await?;
    }
    output.close().await
}

#[cfg(test)]
mod tests;
