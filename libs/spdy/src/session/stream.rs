//! A stream of a session: bytes in both directions, each with an end of its own.
//!
//! Invariant: bytes arrive in order; the end of a stream that was cut is an error and never looks
//! like its end. At most the session's buffer waits for the reader. A reader that is dropped holds
//! up nothing: what arrives for it is dropped.
//! Failure: `ConnectionReset` on reading and `BrokenPipe` on writing after a reset or the end of
//! the session.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::PollSender;

use crate::frame::{Frame, Headers};

/// Largest data frame that is sent: what Go's `io.Copy` takes at once.
const PIECE: usize = 32 * 1024;

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const RESET: u8 = 2;

/// Content that waits, with its part of the buffer.
type Chunk = (Bytes, OwnedSemaphorePermit);

/// A stream that the client opened.
#[derive(Debug)]
pub struct Stream {
    id: u32,
    headers: Headers,
    read: ReadHalf,
    write: WriteHalf,
}

/// The session's end of a stream.
#[derive(Debug)]
pub(super) struct Inlet {
    chunks: mpsc::UnboundedSender<Chunk>,
    buffer: Arc<Semaphore>,
    state: Arc<AtomicU8>,
}

impl Stream {
    pub(super) fn new(
        id: u32,
        headers: Headers,
        place: OwnedSemaphorePermit,
        buffer: usize,
        outgoing: mpsc::Sender<Frame>,
    ) -> (Self, Inlet) {
        let (sender, chunks) = mpsc::unbounded_channel();
        let buffer = Arc::new(Semaphore::new(buffer.max(crate::MAX_PIECE)));
        let state = Arc::new(AtomicU8::new(OPEN));
        let place = Arc::new(place);
        let inlet = Inlet {
            chunks: sender,
            buffer: Arc::clone(&buffer),
            state: Arc::clone(&state),
        };
        let stream = Self {
            id,
            headers,
            read: ReadHalf {
                chunks,
                buffer,
                state: Arc::clone(&state),
                current: None,
                _place: Arc::clone(&place),
            },
            write: WriteHalf {
                id,
                frames: PollSender::new(outgoing),
                state,
                is_shut: false,
                _place: place,
            },
        };
        (stream, inlet)
    }

    /// The id of the stream, for logs.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The value of a header; names are lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Both directions.
    #[must_use]
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }
}

impl Inlet {
    /// Waits for room in the buffer. A reader that no longer exists takes everything.
    pub(super) async fn send(&self, content: Bytes) {
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        if length == 0 {
            return;
        }
        if let Ok(room) = Arc::clone(&self.buffer).acquire_many_owned(length).await {
            // The reader may have been dropped meanwhile.
            let _ = self.chunks.send((content, room));
        }
    }

    /// The client has sent everything.
    pub(super) fn finish(self) {
        // A reset that came first stays.
        let _ = self
            .state
            .compare_exchange(OPEN, FINISHED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The stream is over in both directions.
    pub(super) fn reset(self) {
        self.state.store(RESET, Ordering::Release);
    }
}

/// Content that the client sends.
#[derive(Debug)]
pub struct ReadHalf {
    chunks: mpsc::UnboundedReceiver<Chunk>,
    buffer: Arc<Semaphore>,
    state: Arc<AtomicU8>,
    current: Option<Chunk>,
    _place: Arc<OwnedSemaphorePermit>,
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.current.is_none() {
            self.current = ready!(self.chunks.poll_recv(context));
        }
        let Some((content, _)) = &mut self.current else {
            let is_whole = self.state.load(Ordering::Acquire) == FINISHED;
            return Poll::Ready(if is_whole {
                Ok(())
            } else {
                Err(io::ErrorKind::ConnectionReset.into())
            });
        };
        let length = content.len().min(out.remaining());
        out.put_slice(&content[..length]);
        content.advance(length);
        if content.is_empty() {
            self.current = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        self.buffer.close();
    }
}

/// Content that the server sends. Shutting it down sends its end; dropping it sends nothing.
#[derive(Debug)]
pub struct WriteHalf {
    id: u32,
    frames: PollSender<Frame>,
    state: Arc<AtomicU8>,
    is_shut: bool,
    _place: Arc<OwnedSemaphorePermit>,
}

impl WriteHalf {
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        content: Bytes,
        fin: bool,
    ) -> Poll<io::Result<()>> {
        let broken = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        if self.is_shut || self.state.load(Ordering::Acquire) == RESET {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.frames.poll_reserve(context)).map_err(broken)?;
        let frame = Frame::Data {
            stream: self.id,
            fin,
            content,
        };
        Poll::Ready(self.frames.send_item(frame).map_err(broken))
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        if piece.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let content = Bytes::copy_from_slice(piece);
        ready!(self.poll_send(context, content, false))?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_shut {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_send(context, Bytes::new(), true))?;
        self.is_shut = true;
        Poll::Ready(Ok(()))
    }
}
