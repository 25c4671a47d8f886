//! The first bytes of a file, without the rest.
//!
//! Invariant: at most as many bytes as are wanted are kept, and no more are waited for, also from a
//! server that knows no ranges; the connection ends with the reply.
//! Failure: as of a download; a head that breaks off is requested again.

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};

use super::super::error::Result;
use super::super::format::HEAD;
use super::reply;
use super::request::Request;

/// How a file begins.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::images) struct Head {
    /// The first bytes: all of them, if the file has no more.
    pub(in crate::images) bytes: Vec<u8>,
    /// Length of the file, if the server gives it or all of it came.
    pub(in crate::images) length: Option<u64>,
}

impl Head {
    /// Whether the file has nothing behind it.
    pub(in crate::images) fn is_all(&self) -> bool {
        self.length == Some(self.bytes.len() as u64)
    }

    /// What a file is judged by.
    pub(in crate::images) fn judged(&self) -> &[u8] {
        let most = usize::try_from(HEAD).unwrap_or(usize::MAX);
        &self.bytes[..self.bytes.len().min(most)]
    }
}

impl Request<'_> {
    /// Sends one request for the first `most` bytes of the file.
    pub(super) async fn peek(&self, most: u64) -> Result<Head> {
        let response = self.send(headers(most)).await?;
        let headers = response.headers();
        let length = match response.status() {
            StatusCode::OK => reply::length(headers),
            StatusCode::PARTIAL_CONTENT => match reply::range(headers) {
                Some(range) if range.start == 0 => range.total,
                _ => return Err(self.unusable("it is not the range that was asked for")),
            },
            // No file but an empty one has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Ok(Head {
                    bytes: Vec::new(),
                    length: Some(0),
                });
            }
            _ => return Err(self.refusal(&response)),
        };
        let encoding = self.file_encoding(headers)?;
        self.fits(length.unwrap_or_default())?;
        let head = self.head(response, length, most).await?;
        self.encoded(encoding, &head.bytes)?;
        Ok(head)
    }

    async fn head(&self, mut response: Response, length: Option<u64>, most: u64) -> Result<Head> {
        let expected = length.map_or(most, |length| length.min(most));
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < expected {
            match self.in_time(response.chunk()).await? {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Err(self.cut(error, bytes.len() as u64, length)),
            }
        }
        let received = bytes.len() as u64;
        if let Some(total) = length.filter(|_| received < expected) {
            return Err(self.truncated(received, total));
        }
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(Head {
            bytes,
            // A body that ended before the head did is all there is.
            length: length.or((received < most).then_some(received)),
        })
    }
}

fn headers(most: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let range = format!("bytes=0-{}", most.saturating_sub(1));
    if let Ok(range) = HeaderValue::from_str(&range) {
        headers.insert(header::RANGE, range);
    }
    let plain = HeaderValue::from_static("identity");
    headers.insert(header::ACCEPT_ENCODING, plain);
    headers
}
