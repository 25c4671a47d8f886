//! A call as its client made it, for sending it to runtimes.
//!
//! Invariant: metadata reach a runtime as they came; a call that goes to several runtimes requests no
//! compression.
//! Failure: none.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use crate::wire::{Body, Opening};

/// A call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Its method, from a fixed table.
    pub(crate) name: &'static str,
    uri: Uri,
    method: Method,
    headers: HeaderMap,
}

impl Call {
    pub(crate) fn new(parts: Parts, name: &'static str) -> Self {
        let uri = match parts.uri.authority() {
            Some(_) => parts.uri,
            None => address(parts.uri.path_and_query().map_or("/", |path| path.as_str())),
        };
        Self {
            name,
            uri,
            method: parts.method,
            headers: parts.headers,
        }
    }

    /// A call of the proxy's own.
    pub(crate) fn own(path: &str, name: &'static str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        Self {
            name,
            uri: address(path),
            method: Method::POST,
            headers,
        }
    }

    /// The same call with this body.
    pub(crate) fn request(&self, body: Body) -> Request<Body> {
        self.build(self.uri.clone(), self.headers.clone(), body)
    }

    /// The same call with this message, for one of several runtimes.
    pub(crate) fn copy(&self, message: &Bytes) -> Request<Body> {
        self.build(
            self.uri.clone(),
            self.plain(),
            Body::message([message.clone()]),
        )
    }

    /// Another method on behalf of the same caller.
    pub(crate) fn other(&self, path: &str, message: &Bytes) -> Request<Body> {
        let uri = if self.uri.path() == path {
            self.uri.clone()
        } else {
            address(path)
        };
        self.build(uri, self.plain(), Body::message([message.clone()]))
    }

    /// How long the caller waits.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        cri_proto::timeout(&self.headers)
    }

    fn plain(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove("grpc-accept-encoding");
        headers.remove("grpc-encoding");
        headers.remove(CONTENT_LENGTH);
        headers
    }

    fn build(&self, uri: Uri, headers: HeaderMap, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = headers;
        request
    }
}

impl From<Opening> for Body {
    fn from(opening: Opening) -> Self {
        let Opening { chunks, rest, .. } = opening;
        Self::Replay { chunks, rest }
    }
}

impl Body {
    /// The opening's request with another first message.
    pub(crate) fn changed(opening: Opening, message: Bytes) -> Self {
        let chunks: VecDeque<_> = match Self::message([message]) {
            Self::Ready { chunks, .. } => chunks,
            _ => VecDeque::new(),
        };
        Self::Replay {
            chunks,
            rest: opening.rest,
        }
    }
}

/// The authority that Go's client sends to a Unix socket.
fn address(path: &str) -> Uri {
    let made = Uri::builder()
        .scheme("http")
        .authority("localhost")
        .path_and_query(path)
        .build();
    made.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("2S", Some(Duration::from_secs(2)))]
    #[case("1500m", Some(Duration::from_millis(1500)))]
    #[case("99999999H", Some(Duration::from_secs(99_999_999 * 3600)))]
    #[case("", None)]
    #[case("é", None)]
    #[case("5", None)]
    #[case("-1S", None)]
    fn a_timeout_is_read_or_ignored(#[case] text: &str, #[case] want: Option<Duration>) {
        let mut call = Call::own("/x", "x");
        let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
        call.headers.insert("grpc-timeout", value);
        assert_eq!(call.timeout(), want);
    }
}
