//! Bodies of requests and answers that this program sends.
//!
//! Invariant: frames pass in order and unchanged. A backend that breaks off in the middle of an
//! answer becomes the trailers of `Unavailable`; an answer is never cut short silently.
//! Failure: the error of the client's own stream, which ends the call to the backend too.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::{code_of, frame_head, refusal_trailers};

/// Messages up to this size are copied behind their prefix, so that they leave in one piece.
const SMALL: usize = 16 * 1024;

/// A body.
#[derive(Debug)]
pub(crate) enum Body {
    /// Nothing.
    Empty,
    /// Bytes at hand, then trailers.
    Ready {
        /// Data, in order.
        chunks: VecDeque<Bytes>,
        /// What ends an answer; requests have none.
        trailers: Option<HeaderMap>,
    },
    /// The client's request: what was read of it, and the rest.
    Replay {
        /// Read already.
        chunks: VecDeque<Bytes>,
        /// Still to come.
        rest: Incoming,
    },
    /// The backend's answer, watched.
    Passing(Box<Tap>),
    /// Frames that something else makes.
    Made(mpsc::Receiver<Frame<Bytes>>),
}

/// Notified of the end of a passing reply.
pub(crate) trait Ending: Send + std::fmt::Debug {
    /// Whether [`Ending::data`] wants to see the bytes.
    fn wants_data(&self) -> bool {
        false
    }
    /// Some bytes of the answer.
    fn data(&mut self, _data: &Bytes) {}
    /// The end, with the code of the trailers.
    fn end(&mut self, code: Code);
}

/// An answer on its way.
#[derive(Debug)]
pub(crate) struct Tap {
    inner: Incoming,
    backend: String,
    ending: Option<Box<dyn Ending>>,
}

impl Tap {
    pub(crate) fn new(inner: Incoming, backend: String, ending: Box<dyn Ending>) -> Self {
        let ending = Some(ending);
        Self {
            inner,
            backend,
            ending,
        }
    }

    fn ended(&mut self, code: Code) {
        if let Some(mut ending) = self.ending.take() {
            ending.end(code);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if self.ending.is_none() {
            return Poll::Ready(None);
        }
        match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.ended(code_of(trailers).unwrap_or(Code::Unknown));
                } else if let Some(data) = frame.data_ref()
                    && let Some(ending) = &mut self.ending
                    && ending.wants_data()
                {
                    ending.data(data);
                }
                Poll::Ready(Some(frame))
            }
            Some(Err(error)) => {
                let name = &self.backend;
                tracing::debug!(backend = %name, %error, "reply interrupted");
                let status = Status::unavailable(format!("runtime {name} broke off its answer"));
                self.ended(Code::Unavailable);
                Poll::Ready(Some(Frame::trailers(refusal_trailers(&status))))
            }
            None => {
                self.ended(Code::Unknown);
                Poll::Ready(None)
            }
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.ended(Code::Cancelled);
    }
}

impl Body {
    /// One message made of these parts, as a request.
    pub(crate) fn message(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let chunks = framed(parts);
        Self::Ready {
            chunks,
            trailers: None,
        }
    }

    /// One message made of these parts, as an answer.
    pub(crate) fn answer(parts: impl IntoIterator<Item = Bytes>, trailers: HeaderMap) -> Self {
        let chunks = framed(parts);
        Self::Ready {
            chunks,
            trailers: Some(trailers),
        }
    }
}

/// The prefix and the parts of one message.
pub(super) fn framed(parts: impl IntoIterator<Item = Bytes>) -> VecDeque<Bytes> {
    let mut chunks: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let length: usize = chunks.iter().map(Bytes::len).sum();
    let head = frame_head(length);
    if length <= SMALL {
        let mut whole = Vec::with_capacity(head.len() + length);
        whole.extend_from_slice(&head);
        for chunk in &chunks {
            whole.extend_from_slice(chunk);
        }
        return VecDeque::from([whole.into()]);
    }
    chunks.push_front(head);
    chunks
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let next = match &mut *self {
            Self::Empty => None,
            Self::Ready { chunks, trailers } => match chunks.pop_front() {
                Some(chunk) => Some(Frame::data(chunk)),
                None => trailers.take().map(Frame::trailers),
            },
            Self::Replay { chunks, rest } => match chunks.pop_front() {
                Some(chunk) => Some(Frame::data(chunk)),
                None => return Pin::new(rest).poll_frame(cx),
            },
            Self::Passing(tap) => ready!(tap.poll(cx)),
            Self::Made(frames) => ready!(frames.poll_recv(cx)),
        };
        Poll::Ready(next.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Ready { chunks, trailers } => chunks.is_empty() && trailers.is_none(),
            Self::Replay { chunks, rest } => chunks.is_empty() && rest.is_end_stream(),
            Self::Passing(tap) => tap.inner.is_end_stream(),
            Self::Made(_) => false,
        }
    }
}
