//! How a call ended, from gRPC's headers and trailers.
//!
//! Invariant: an answer of our own has the shape that a gRPC server gives a call without messages.
//! Failure: none; what cannot be decoded becomes `Unknown`.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use tonic::{Code, Status};

use super::Body;

/// The code in headers or trailers; `None` when they carry none.
pub(crate) fn code_of(headers: &HeaderMap) -> Option<Code> {
    let value = headers.get("grpc-status")?;
    Some(Code::from_bytes(value.as_bytes()))
}

/// A call that ends before it began.
pub(crate) fn refusal(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    let headers = response.headers_mut();
    *headers = refusal_trailers(status);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The trailers of a call that ends like this.
pub(crate) fn refusal_trailers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if status.add_header(&mut headers).is_err() {
        headers.insert("grpc-status", HeaderValue::from_static("2"));
    }
    headers
}
