//! One request to the server of a file, and the classification of its failures.
//!
//! Invariant: an answer begins within the time for a connection and the stall time together; each
//! later part of it within the stall time. No error holds a URL.
//! Failure: [`Error`] by what went wrong: server, network, certificate, redirect.

use std::error::Error as StdError;

use reqwest::header::HeaderMap;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use tokio::time::timeout;

use super::super::addresses::is_refused;
use super::super::client::is_untrusted;
use super::super::error::{Error, Result};
use super::super::format;
use super::super::partial::Full;
use super::super::translate::location;
use super::reply::Encoding;
use super::{Downloader, Target, reply};

const ENCODED: &str = "the body is compressed although that was not asked for";
/// Beginning of a gzip file.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The bytes of a file, as a downloader requests them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) downloader: &'a Downloader,
    pub(super) target: &'a Target,
}

impl Request<'_> {
    /// Requests the file, and waits for the beginning of the answer.
    pub(super) async fn send(&self, headers: HeaderMap) -> Result<Response> {
        let request = self.client().get(self.target.source.url().clone());
        self.answer(request.headers(headers)).await
    }

    /// Waits for the beginning of the answer to a request for the target's URL.
    pub(super) async fn answer(&self, request: RequestBuilder) -> Result<Response> {
        if self
            .downloader
            .guard
            .check_url(self.target.source.url())
            .is_err()
        {
            return Err(self.refused_address());
        }
        let request = request.headers(self.target.headers.clone());
        let limit = self.downloader.connect_timeout + self.downloader.stall_timeout;
        match timeout(limit, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.broken(error)),
            Err(_) => Err(self.stalled()),
        }
    }

    pub(super) fn client(&self) -> &Client {
        let own = self.target.client.as_ref();
        own.unwrap_or(&self.downloader.client)
    }

    /// Waits for more of a body, within the stall time.
    pub(super) async fn in_time<T>(&self, more: impl Future<Output = T>) -> Result<T> {
        let more = timeout(self.downloader.stall_timeout, more).await;
        more.map_err(|_| self.stalled())
    }

    /// How the server has encoded a file. A gzip file is unpacked as any other, so that this encoding is
    /// none for us: web servers label files so that end in `.gz`.
    pub(super) fn file_encoding(&self, headers: &HeaderMap) -> Result<Encoding> {
        match reply::encoding(headers) {
            Encoding::Other => Err(self.unusable(ENCODED)),
            encoding => Ok(encoding),
        }
    }

    /// Refuses a file that does not begin as its encoding says.
    pub(super) fn encoded(&self, encoding: Encoding, head: &[u8]) -> Result<()> {
        let begin = &head[..head.len().min(GZIP.len())];
        if encoding == Encoding::Gzip && !GZIP.starts_with(begin) {
            Err(self.unusable("its header says that it is compressed, and it is not"))
        } else {
            Ok(())
        }
    }

    /// Refuses a body that is not the file as it is.
    pub(super) fn plain(&self, headers: &HeaderMap) -> Result<()> {
        if reply::is_encoded(headers) {
            Err(self.unusable(ENCODED))
        } else {
            Ok(())
        }
    }

    /// Refuses a file, or the part of one that has come, that is too large.
    pub(super) fn fits(&self, bytes: u64) -> Result<()> {
        let limit = self.downloader.max_bytes();
        if bytes > limit {
            Err(Error::TooLarge {
                location: self.target.source.location(),
                limit,
            })
        } else {
            Ok(())
        }
    }

    /// What a status means that was not requested.
    pub(super) fn refusal(&self, response: &Response) -> Error {
        let code = response.status();
        let location = location(response.url());
        let status = code.to_string();
        match code {
            StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound { location, status },
            code if code.is_server_error() => Error::Unavailable { location, status },
            code => Error::Refused {
                location,
                code: code.as_u16(),
                status,
            },
        }
    }

    /// The error of a body that ends early.
    pub(super) fn cut(&self, error: reqwest::Error, received: u64, total: Option<u64>) -> Error {
        match total {
            Some(total) => self.truncated(received, total),
            None => self.broken(error),
        }
    }

    pub(super) fn truncated(&self, received: u64, total: u64) -> Error {
        Error::Truncated {
            location: self.target.source.location(),
            received,
            total,
        }
    }

    pub(super) fn unusable(&self, reason: &'static str) -> Error {
        Error::Reply {
            location: self.target.source.location(),
            reason,
        }
    }

    pub(super) fn broken(&self, error: reqwest::Error) -> Error {
        if is_refused(&error) {
            return self.refused_address();
        }
        let location = self.target.source.location();
        let redirect = error.is_redirect();
        let untrusted = is_untrusted(&error);
        let reason = innermost(&error.without_url());
        if redirect {
            Error::Redirect { location, reason }
        } else if untrusted {
            Error::Untrusted { location, reason }
        } else {
            Error::Fetch { location, reason }
        }
    }

    fn refused_address(&self) -> Error {
        Error::Address {
            location: self.target.source.location(),
        }
    }

    /// What all downloads in progress take is too much.
    pub(super) const fn crowded(full: Full) -> Error {
        Error::Crowded { limit: full.limit }
    }

    pub(super) fn slow(&self) -> Error {
        Error::Slow {
            location: self.target.source.location(),
            limit: self.downloader.min_rate,
        }
    }

    pub(super) fn unfit(&self, reason: format::Error) -> Error {
        Error::Format {
            location: self.target.source.location(),
            reason,
        }
    }

    fn stalled(&self) -> Error {
        Error::Stalled {
            location: self.target.source.location(),
            seconds: self.downloader.stall_timeout.as_secs(),
        }
    }
}

/// The cause that all others only wrap, without the kernel's number for it, as the rest of a
/// sentence.
fn innermost(error: &dyn StdError) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let text = last.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        // Not the beginning of an abbreviation.
        (Some(first), Some(second)) if second.is_lowercase() => {
            format!("{}{}", first.to_lowercase(), letters.as_str())
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("error sending request")]
    struct Sending(#[source] Connecting);

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Connecting(#[source] io::Error);

    #[test]
    fn a_cause_is_said_once_and_without_the_steps_of_the_client() {
        let refused = io::Error::from_raw_os_error(nix::libc::ECONNREFUSED);
        let error = Sending(Connecting(refused));
        assert_eq!(innermost(&error), "connection refused");
        let error = Sending(Connecting(io::Error::other("TLS is needed")));
        assert_eq!(innermost(&error), "TLS is needed");
    }
}
