//! Forwards a call to one runtime unchanged, in both directions, frame by frame.
//!
//! Invariant: nothing is decoded or held back. The call to the runtime ends when the client's does.
//! Failure: `Unavailable` when the runtime cannot be reached or breaks off.

use bytes::{Bytes, BytesMut};
use http::Response;
use hyper::body::Body as _;
use tonic::Code;

use super::{Call, Proxy};
use crate::metrics::Running;
use crate::state::BackendIndex;
use crate::wire::{Body, Ending, Tap, code_of, payload, refusal};

/// Largest answer that something is learned from; those that name a new object are tiny.
const LONGEST: usize = 64 * 1024;

/// Called with the message of a good answer before its end is passed on.
pub(super) struct Learn(Box<dyn FnOnce(Bytes) + Send>);

#[derive(Debug)]
struct Watch {
    running: Option<Running>,
    learn: Option<Learn>,
    seen: BytesMut,
}

impl Learn {
    pub(super) fn new(learn: impl FnOnce(Bytes) + Send + 'static) -> Option<Self> {
        Some(Self(Box::new(learn)))
    }
}

impl std::fmt::Debug for Learn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Learn")
    }
}

impl Proxy {
    /// Passes the call on.
    pub(super) async fn forward(
        &self,
        index: BackendIndex,
        call: &Call,
        body: Body,
        learn: Option<Learn>,
    ) -> Response<Body> {
        let backend = self.backend(index);
        let running = backend.meter(call.name);
        let response = match backend.send(call.request(body)).await {
            Ok(response) => response,
            Err(why) => {
                running.end(Code::Unavailable);
                return refusal(&backend.unavailable(&why));
            }
        };
        let (parts, body) = response.into_parts();
        if body.is_end_stream() {
            running.end(code_of(&parts.headers).unwrap_or(Code::Unknown));
            return Response::from_parts(parts, Body::Empty);
        }
        let watch = Watch {
            running: Some(running),
            learn,
            seen: BytesMut::new(),
        };
        let tap = Tap::new(body, backend.name.to_string(), Box::new(watch));
        Response::from_parts(parts, Body::Passing(Box::new(tap)))
    }
}

impl Ending for Watch {
    fn wants_data(&self) -> bool {
        self.learn.is_some()
    }

    fn data(&mut self, data: &Bytes) {
        if self.seen.len() + data.len() > LONGEST {
            self.learn = None;
        } else {
            self.seen.extend_from_slice(data);
        }
    }

    fn end(&mut self, code: Code) {
        if let Some(running) = self.running.take() {
            running.end(code);
        }
        if let Some(Learn(learn)) = self.learn.take()
            && code == Code::Ok
            && let Ok(message) = payload(&self.seen.split().freeze())
        {
            learn(message);
        }
    }
}
