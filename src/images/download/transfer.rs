//! One request and its reply.
//!
//! Invariant: what is received is written before the next wait, so that a dropped transfer loses nothing
//! that the kernel had delivered; hashing and writing happen on blocking threads.
//! Failure: an error leaves the partial continuable, unless it says otherwise.

use std::sync::Arc;

use futures_util::FutureExt as _;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::time::timeout;

use super::super::client::is_untrusted;
use super::super::error::{Error, Result};
use super::super::partial::{Handle, Note, Validators};
use super::super::progress::Meter;
use super::super::translate::{Source, location};
use super::{Downloader, reply};

/// Bytes that are gathered before they are written, if the network is faster than the disk.
const BATCH: usize = 1 << 20;

/// How a request ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Unchanged,
    Whole,
}

/// What is asked of the server.
enum Ask {
    Everything,
    Rest { from: u64, validator: String },
    Unless(Validators),
}

pub(super) struct Transfer<'a> {
    pub(super) downloader: &'a Downloader,
    pub(super) source: &'a Source,
    pub(super) partial: &'a Handle,
    pub(super) meter: &'a Meter,
}

impl Transfer<'_> {
    /// Asks once. `known` are the validators of a file that we have already.
    pub(super) async fn attempt(&self, known: Option<&Validators>) -> Result<Ending> {
        let (received, whole, note) = self
            .partial
            .look(|p| (p.received(), p.is_whole(), p.note().clone()));
        self.meter.set(received, note.total);
        let ask = match (note.validators.strong(), known) {
            _ if whole => Ask::Unless(note.validators.clone()),
            (Some(validator), _) if received > 0 => Ask::Rest {
                from: received,
                validator: validator.to_owned(),
            },
            (_, Some(known)) => Ask::Unless(known.clone()),
            _ => Ask::Everything,
        };
        let response = self.send(&ask).await?;
        match (response.status(), &ask) {
            (StatusCode::NOT_MODIFIED, Ask::Unless(_)) if whole => Ok(Ending::Whole),
            (StatusCode::NOT_MODIFIED, Ask::Unless(_)) => Ok(Ending::Unchanged),
            (StatusCode::OK, _) => self.whole_body(response).await,
            (StatusCode::PARTIAL_CONTENT, Ask::Rest { from, .. }) => {
                match reply::range(response.headers()) {
                    Some(range) if range.continues(*from, note.total) => {
                        self.body(response, range.total.or(note.total)).await
                    }
                    _ => self.start_over().await,
                }
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, Ask::Rest { .. }) => self.start_over().await,
            (status, _) => Err(self.refusal(&response, status)),
        }
    }

    async fn send(&self, ask: &Ask) -> Result<Response> {
        let request = self
            .downloader
            .client
            .get(self.source.url().clone())
            .headers(headers(ask));
        let limit = self.downloader.connect_timeout + self.downloader.stall_timeout;
        match timeout(limit, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.broken(error)),
            Err(_) => Err(self.stalled()),
        }
    }

    /// The server does not continue what we have: ask for everything.
    async fn start_over(&self) -> Result<Ending> {
        let response = self.send(&Ask::Everything).await?;
        match response.status() {
            StatusCode::OK => self.whole_body(response).await,
            status => Err(self.refusal(&response, status)),
        }
    }

    async fn whole_body(&self, response: Response) -> Result<Ending> {
        let headers = response.headers();
        if reply::is_encoded(headers) {
            return Err(Error::Reply {
                location: self.source.location(),
                reason: "the body is compressed although that was not asked for",
            });
        }
        let total = reply::length(headers);
        let note = Note::new(self.source.location(), reply::validators(headers), total);
        self.partial.work(move |p| p.restart(note)).await?;
        self.body(response, total).await
    }

    async fn body(&self, mut response: Response, total: Option<u64>) -> Result<Ending> {
        let mut received = self.partial.look(|p| p.received());
        if total.is_some_and(|total| total > self.downloader.max_bytes) {
            return Err(self.too_large());
        }
        let missing = total.map_or(0, |total| total.saturating_sub(received));
        self.partial.check_space(missing).await?;
        let mut batch = Vec::new();
        loop {
            let ready = response.chunk().now_or_never();
            if ready.is_none() || batch.len() >= BATCH {
                self.write(&mut batch, received, total).await?;
            }
            let next = match ready {
                Some(next) => next,
                None => timeout(self.downloader.stall_timeout, response.chunk())
                    .await
                    .map_err(|_| self.stalled())?,
            };
            match next {
                Ok(Some(chunk)) => {
                    received += chunk.len() as u64;
                    if received > self.downloader.max_bytes {
                        return Err(self.too_large());
                    }
                    batch.extend_from_slice(&chunk);
                }
                Ok(None) => break,
                Err(error) => {
                    self.write(&mut batch, received, total).await?;
                    return Err(self.cut(error, received, total));
                }
            }
        }
        self.write(&mut batch, received, total).await?;
        match total {
            Some(total) if total != received => Err(self.truncated(received, total)),
            _ => Ok(Ending::Whole),
        }
    }

    async fn write(&self, batch: &mut Vec<u8>, received: u64, total: Option<u64>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(batch);
        *batch = self
            .partial
            .work(move |p| {
                p.append(&bytes)?;
                let mut bytes = bytes;
                bytes.clear();
                Ok(bytes)
            })
            .await?;
        self.meter.set(received, total);
        Ok(())
    }

    fn refusal(&self, response: &Response, status: StatusCode) -> Error {
        let (location, status) = (location(response.url()), status.to_string());
        match response.status() {
            StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound { location, status },
            code if code.is_server_error() => Error::Unavailable { location, status },
            _ => Error::Refused { location, status },
        }
    }

    fn broken(&self, error: reqwest::Error) -> Error {
        let location = self.source.location();
        let (redirect, untrusted) = (error.is_redirect(), is_untrusted(&error));
        let source = Arc::new(error.without_url());
        if redirect {
            Error::Redirect { location, source }
        } else if untrusted {
            Error::Untrusted { location, source }
        } else {
            Error::Fetch { location, source }
        }
    }

    fn cut(&self, error: reqwest::Error, received: u64, total: Option<u64>) -> Error {
        match total {
            Some(total) => self.truncated(received, total),
            None => self.broken(error),
        }
    }

    fn truncated(&self, received: u64, total: u64) -> Error {
        Error::Truncated {
            location: self.source.location(),
            received,
            total,
        }
    }

    fn stalled(&self) -> Error {
        Error::Stalled {
            location: self.source.location(),
            seconds: self.downloader.stall_timeout.as_secs(),
        }
    }

    fn too_large(&self) -> Error {
        Error::TooLarge {
            location: self.source.location(),
            limit: self.downloader.max_bytes,
        }
    }
}

fn headers(ask: &Ask) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name, value: &str| {
        // Validators came out of a header, so they fit into one.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(header::ACCEPT_ENCODING, "identity");
    match ask {
        Ask::Everything => {}
        Ask::Rest { from, validator } => {
            put(header::RANGE, &format!("bytes={from}-"));
            put(header::IF_RANGE, validator);
        }
        Ask::Unless(validators) => match (&validators.etag, &validators.modified) {
            (Some(etag), _) => put(header::IF_NONE_MATCH, etag),
            (None, Some(modified)) => put(header::IF_MODIFIED_SINCE, modified),
            (None, None) => {}
        },
    }
    headers
}
