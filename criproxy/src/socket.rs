//! A Unix socket under HTTP/2 that costs few system calls and no needless wake-ups.
//!
//! What HTTP/2 writes frame by frame is collected, and leaves in one piece when every task that was
//! ready has had its turn: a request's headers with its message, an answer's headers with its data
//! and trailers. The kernel is asked about room to write only while there is none; else each read
//! of the peer would wake us to say that there is some.
//!
//! Invariant: bytes leave in order, and never later than one turn of the scheduler after they were
//! written. No more than [`MOST`] are kept.
//! Failure: the kernel's error, from the next write or from [`drive`].

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use hyper::rt::Executor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

/// Most bytes that are collected before they leave.
const MOST: usize = 256 * 1024;

/// A socket, for the one task that does the connection's work; see [`drive`].
#[derive(Debug)]
pub(crate) struct Socket {
    /// No pipe, but what tokio watches for nothing but arrivals.
    incoming: pipe::Receiver,
    outgoing: Outgoing,
}

/// What was written and has not left.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing(Arc<Mutex<Waiting>>);

#[derive(Debug)]
struct Waiting {
    bytes: BytesMut,
    /// How many bytes were ever added.
    collected: u64,
    socket: UnixStream,
    /// The same socket while it has no room, watched for room alone.
    room: Option<pipe::Sender>,
}

/// Spawns the tasks of a client's connection, one of which writes.
#[derive(Debug, Clone)]
pub(crate) struct Driving(pub(crate) Outgoing);

impl Socket {
    /// Takes over a connected socket.
    pub(crate) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let socket = stream.into_std()?;
        let incoming = pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?.into())?;
        let waiting = Waiting {
            bytes: BytesMut::new(),
            collected: 0,
            socket,
            room: None,
        };
        let outgoing = Outgoing(Arc::new(Mutex::new(waiting)));
        Ok(Self { incoming, outgoing })
    }

    /// What [`drive`] needs.
    pub(crate) fn outgoing(&self) -> Outgoing {
        self.outgoing.clone()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.incoming).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut waiting = self.outgoing.lock();
        if waiting.bytes.len() >= MOST {
            ready!(waiting.poll_leave(cx))?;
        }
        let mut taken = 0;
        for part in parts {
            let room = MOST - waiting.bytes.len();
            let part = &part[..part.len().min(room)];
            waiting.bytes.extend_from_slice(part);
            taken += part.len();
        }
        waiting.collected += taken as u64;
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: [`drive`] does it when there is nothing more to add.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waiting = self.outgoing.lock();
        ready!(waiting.poll_leave(cx))?;
        Poll::Ready(waiting.socket.shutdown(Shutdown::Write))
    }
}

impl Outgoing {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Writes all that waits.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            let written = match &mut self.room {
                Some(room) => ready!(Pin::new(room).poll_write(cx, &self.bytes)),
                None => self.socket.write(&self.bytes),
            };
            match written {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(written) => self.bytes.advance(written),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let again = self.socket.try_clone()?;
                    self.room = Some(pipe::Sender::from_owned_fd_unchecked(again.into())?);
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        self.room = None;
        Poll::Ready(Ok(()))
    }
}

/// Runs `work`, which writes to the socket, and lets leave what it wrote.
pub(crate) async fn drive<F: Future>(work: Pin<&mut F>, outgoing: &Outgoing) -> F::Output {
    let mut work = work;
    let mut others_first = true;
    let mut ours = false;
    std::future::poll_fn(|cx| {
        let before = outgoing.lock().collected;
        let ended = work.as_mut().poll(cx);
        let mut waiting = outgoing.lock();
        // Of a client's tasks only one writes. The others must not send what it has begun to
        // collect.
        ours |= waiting.collected != before;
        if !ours || waiting.bytes.is_empty() {
            return ended;
        }
        if ended.is_pending() && std::mem::take(&mut others_first) {
            // Tasks that are ready now may have more to say on this connection.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        others_first = true;
        if let Poll::Ready(Err(error)) = waiting.poll_leave(cx) {
            tracing::debug!(%error, "write to a client failed");
            waiting.bytes.clear();
            // The connection learns it from its next read; what cannot be shut is shut already.
            let _ = waiting.socket.shutdown(Shutdown::Both);
        }
        ended
    })
    .await
}

impl<F> Executor<F> for Driving
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, work: F) {
        let outgoing = self.0.clone();
        tokio::spawn(async move {
            drive(std::pin::pin!(work), &outgoing).await;
        });
    }
}

#[cfg(test)]
mod tests;
