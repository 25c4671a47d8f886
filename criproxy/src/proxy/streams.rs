//! Lists as streams of messages.
//!
//! Invariant: the primary's messages first and as they came, then those of the others; the stream
//! ends well only when it was complete.
//! Failure: the primary's own error, also in the middle; `Unavailable` when a secondary is away and
//! what it had is not known. The client throws away what it has then.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming};
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::answer::success;
use super::{Call, Proxy};
use crate::methods::Listing;
use crate::metrics::Running;
use crate::wire::{Body, code_of, frame_head, refusal, refusal_trailers};

/// Frames on their way to the client.
const ROOM: usize = 16;

impl Proxy {
    /// Streams the answers of all runtimes, one runtime after the other.
    pub(super) async fn stream(
        self: &Arc<Self>,
        call: &Call,
        listing: Listing,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let running = self.primary.meter(call.name);
        let response = match self.primary.send(call.copy(message)).await {
            Ok(response) => response,
            Err(why) => {
                running.end(Code::Unavailable);
                return Ok(refusal(&self.primary.unavailable(&why)));
            }
        };
        let (parts, first) = response.into_parts();
        if first.is_end_stream() {
            running.end(code_of(&parts.headers).unwrap_or(Code::Unknown));
            return Ok(Response::from_parts(parts, Body::Empty));
        }
        // Secondaries send whole lists: those are bounded, and what is remembered of them
        // is the same.
        let others = self.secondaries.iter();
        let others = join_all(others.map(|s| self.part(s, call, listing, message))).await;
        let (frames, body) = mpsc::channel(ROOM);
        let proxy = Arc::clone(self);
        tokio::spawn(async move {
            let trailers = proxy.relay(first, others, &frames, running).await;
            // A client that has disconnected needs no reply.
            if let Some(trailers) = trailers {
                let _ = frames.send(Frame::trailers(trailers)).await;
            }
        });
        Ok(Response::from_parts(parts, Body::Made(body)))
    }

    /// Sends everything; gives the end, or nothing when the client has disconnected.
    async fn relay(
        &self,
        mut first: Incoming,
        others: Vec<Result<Bytes, Status>>,
        frames: &mpsc::Sender<Frame<Bytes>>,
        running: Running,
    ) -> Option<HeaderMap> {
        let trailers = loop {
            let frame = tokio::select! {
                frame = first.frame() => frame,
                () = frames.closed() => return None,
            };
            match frame {
                Some(Ok(frame)) => match frame.into_trailers() {
                    Ok(trailers) => break trailers,
                    Err(frame) => frames.send(frame).await.ok()?,
                },
                _ => {
                    running.end(Code::Unavailable);
                    let status = self.primary.unavailable("it broke off its answer");
                    return Some(refusal_trailers(&status));
                }
            }
        };
        let code = code_of(&trailers).unwrap_or(Code::Unknown);
        running.end(code);
        if code != Code::Ok {
            return Some(trailers);
        }
        for other in others {
            match other {
                Ok(list) if list.is_empty() => {}
                Ok(list) => {
                    for part in [frame_head(list.len()), list] {
                        frames.send(Frame::data(part)).await.ok()?;
                    }
                }
                Err(status) => return Some(refusal_trailers(&status)),
            }
        }
        Some(if trailers.is_empty() {
            success()
        } else {
            trailers
        })
    }
}
