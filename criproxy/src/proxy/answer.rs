//! Replies that the proxy assembles or takes from memory.
//!
//! Invariant: metadata of a merged answer are the primary's.
//! Failure: none.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use tonic::Status;

use crate::backend::Answer;
use crate::wire::{Body, refusal_trailers};

/// A runtime's answer as it came.
pub(super) fn pass(answer: Answer) -> Response<Body> {
    merge(answer, [])
}

/// The primary's answer with more fields behind its own.
pub(super) fn merge(primary: Answer, more: impl IntoIterator<Item = Bytes>) -> Response<Body> {
    let parts = std::iter::once(primary.message).chain(more);
    let mut response = Response::new(Body::answer(parts, primary.trailers));
    *response.headers_mut() = primary.headers;
    response
}

/// An answer that no runtime gave.
pub(super) fn own(message: Bytes) -> Response<Body> {
    merge(
        Answer {
            headers: headers(),
            message,
            trailers: success(),
        },
        [],
    )
}

/// Initial metadata of an answer of our own.
pub(super) fn headers() -> HeaderMap {
    let form = HeaderValue::from_static("application/grpc");
    HeaderMap::from_iter([(CONTENT_TYPE, form)])
}

/// Final metadata of an answer without an error.
pub(super) fn success() -> HeaderMap {
    refusal_trailers(&Status::ok(""))
}
