//! One request and its reply.
//!
//! Invariant: what is received is handed to a thread that writes and hashes it before the next wait
//! for the network; a dropped transfer loses at most the batch that waits for the write before it.
//! A transfer that has ended has no write in progress.
//! Failure: an error leaves the partial continuable, unless it says otherwise.

use std::sync::Arc;

use futures_util::FutureExt as _;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};

use super::super::error::Result;
use super::super::format::{HEAD, head_of};
use super::super::partial::{Handle, Note, RoomClaim, Validators};
use super::super::progress::Meter;
use super::super::unpack::Packing;
use super::reply;
use super::request::Request;
use crate::space::Claim;

/// Bytes that are gathered before they are written, if the network is faster than the disk.
const BATCH: usize = 1 << 20;

/// How a request ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Unchanged,
    Whole,
}

/// What is asked of the server.
enum Plan {
    Everything,
    Rest { from: u64, validator: String },
    Unless(Validators),
}

pub(super) struct Transfer<'a> {
    pub(super) request: Request<'a>,
    pub(super) partial: &'a Handle,
    pub(super) meter: &'a Meter,
}

impl Transfer<'_> {
    /// Sends one request. `known` are the validators of a file that we have already.
    pub(super) async fn attempt(&self, known: Option<&Validators>) -> Result<Ending> {
        let (received, whole, note) = self
            .partial
            .read(|p| (p.received(), p.is_whole(), p.note().clone()))
            .await;
        self.meter.set(received, note.total);
        let ask = match (note.validators.strong(), known) {
            _ if whole => Plan::Unless(note.validators.clone()),
            (Some(validator), _) if received > 0 => Plan::Rest {
                from: received,
                validator: validator.to_owned(),
            },
            (_, Some(known)) => Plan::Unless(known.clone()),
            _ => Plan::Everything,
        };
        let response = self.request.send(headers(&ask)).await?;
        match (response.status(), &ask) {
            (StatusCode::NOT_MODIFIED, Plan::Unless(_)) if whole => Ok(Ending::Whole),
            (StatusCode::NOT_MODIFIED, Plan::Unless(_)) => Ok(Ending::Unchanged),
            (StatusCode::OK, _) => self.whole_body(response).await,
            (StatusCode::PARTIAL_CONTENT, Plan::Rest { from, .. }) => {
                match reply::range(response.headers()) {
                    Some(range) if range.continues(*from, note.total) => {
                        self.body(response, range.total.or(note.total)).await
                    }
                    _ => self.start_over().await,
                }
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, Plan::Rest { .. }) => self.start_over().await,
            _ => Err(self.request.refusal(&response)),
        }
    }

    /// The server does not continue what we have: request everything.
    async fn start_over(&self) -> Result<Ending> {
        let response = self.request.send(headers(&Plan::Everything)).await?;
        match response.status() {
            StatusCode::OK => self.whole_body(response).await,
            _ => Err(self.request.refusal(&response)),
        }
    }

    async fn whole_body(&self, response: Response) -> Result<Ending> {
        let headers = response.headers();
        self.request.file_encoding(headers)?;
        let total = reply::length(headers);
        let location = self.request.target.source.location();
        let note = Note::new(location, reply::validators(headers), total);
        self.partial.work(move |p| p.restart(note)).await?;
        self.body(response, total).await
    }

    async fn body(&self, response: Response, total: Option<u64>) -> Result<Ending> {
        let received = self.partial.read(|p| p.received()).await;
        self.request.fits(total.unwrap_or_default())?;
        let downloader = self.request.downloader;
        let claimed = downloader.room.claim(total.unwrap_or(received));
        let claim = claimed.map_err(Request::crowded)?;
        downloader.trim(self.partial.dir()).await?;
        let first = total.unwrap_or_else(|| received.saturating_add(BATCH as u64));
        let space = downloader.space.clone();
        let place = self.partial.claim_space(space, first, first).await?;
        let mut writer = Writer {
            transfer: self,
            place: Arc::new(place),
            total,
            received,
            batch: Vec::new(),
            writing: None,
            spare: Vec::new(),
        };
        let streamed = self.stream(response, claim, &mut writer).await;
        let written = writer.settle().await;
        streamed.and(written)?;
        match total {
            Some(total) if total != writer.received => {
                Err(self.request.truncated(writer.received, total))
            }
            _ => Ok(Ending::Whole),
        }
    }

    /// Receives a body to its end. The last write may be in progress then.
    async fn stream(
        &self,
        mut response: Response,
        mut claim: RoomClaim,
        writer: &mut Writer<'_>,
    ) -> Result<()> {
        let downloader = self.request.downloader;
        let encoding = self.request.file_encoding(response.headers())?;
        let mut judged = writer.received >= HEAD;
        let mut pace = Pace::new(downloader.stall_timeout, downloader.min_rate);
        loop {
            let ready = response.chunk().now_or_never();
            if ready.is_none() || writer.batch.len() >= BATCH {
                writer.write().await?;
                if !judged && writer.received >= HEAD {
                    judged = true;
                    writer.settle().await?;
                    self.judge(writer.total).await?;
                }
            }
            let next = match ready {
                Some(next) => next,
                None => self.request.in_time(response.chunk()).await?,
            };
            match next {
                Ok(Some(chunk)) => {
                    if writer.received == 0 {
                        self.request.encoded(encoding, &chunk)?;
                    }
                    let received = writer.received + chunk.len() as u64;
                    self.request.fits(received)?;
                    claim.at_least(received).map_err(Request::crowded)?;
                    writer.take(&chunk);
                    if pace.is_too_slow(chunk.len() as u64) {
                        writer.write().await?;
                        return Err(self.request.slow());
                    }
                }
                Ok(None) => return writer.write().await,
                Err(error) => {
                    writer.write().await?;
                    let received = writer.received;
                    let total = writer.total;
                    return Err(self.request.cut(error, received, total));
                }
            }
        }
    }

    /// Refuses a file by its first bytes, before the rest comes.
    async fn judge(&self, total: Option<u64>) -> Result<()> {
        if !self.request.target.is_disk {
            return Ok(());
        }
        let head = self.partial.work(|p| head_of(p.file())).await?;
        if Packing::detect(&head).is_some() {
            return Ok(());
        }
        let judged = self.request.downloader.rules().judge(&head, total);
        judged
            .map(drop)
            .map_err(|reason| self.request.unfit(reason))
    }
}

/// Writes batches one after the other, each while the next one arrives.
struct Writer<'a> {
    transfer: &'a Transfer<'a>,
    place: Arc<Claim>,
    total: Option<u64>,
    /// Bytes of the file, with those of the batch.
    received: u64,
    batch: Vec<u8>,
    writing: Option<JoinHandle<Result<Vec<u8>>>>,
    /// The buffer of the next batch.
    spare: Vec<u8>,
}

impl Writer<'_> {
    fn take(&mut self, chunk: &[u8]) {
        self.batch.extend_from_slice(chunk);
        self.received += chunk.len() as u64;
    }

    /// Begins to write the batch, after the one before it is written.
    async fn write(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.settle().await?;
        let batch = std::mem::replace(&mut self.batch, std::mem::take(&mut self.spare));
        let size = self.total.unwrap_or(self.received);
        let place = Arc::clone(&self.place);
        self.writing = Some(self.transfer.partial.append(batch, place, size).await);
        self.transfer.meter.set(self.received, self.total);
        Ok(())
    }

    /// Waits until no write is in progress.
    async fn settle(&mut self) -> Result<()> {
        if let Some(writing) = &mut self.writing {
            let written = writing.await;
            self.writing = None;
            self.spare = written??;
        }
        Ok(())
    }
}

/// How fast a body comes.
struct Pace {
    span: Duration,
    /// In each span.
    least: u64,
    since: Instant,
    received: u64,
}

impl Pace {
    fn new(span: Duration, rate: u64) -> Self {
        Self {
            span,
            least: rate.saturating_mul(span.as_secs()),
            since: Instant::now(),
            received: 0,
        }
    }

    /// Whether less came in a span than has to come, these bytes included.
    fn is_too_slow(&mut self, bytes: u64) -> bool {
        self.received += bytes;
        if self.since.elapsed() < self.span {
            return false;
        }
        let slow = self.received < self.least;
        (self.since, self.received) = (Instant::now(), 0);
        slow
    }
}

fn headers(ask: &Plan) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name, value: &str| {
        // Validators came out of a header, so they fit into one.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(header::ACCEPT_ENCODING, "identity");
    match ask {
        Plan::Everything => {}
        Plan::Rest { from, validator } => {
            put(header::RANGE, &format!("bytes={from}-"));
            put(header::IF_RANGE, validator);
        }
        Plan::Unless(validators) => match (&validators.etag, &validators.modified) {
            (Some(etag), _) => put(header::IF_NONE_MATCH, etag),
            (None, Some(modified)) => put(header::IF_MODIFIED_SINCE, modified),
            (None, None) => {}
        },
    }
    headers
}
