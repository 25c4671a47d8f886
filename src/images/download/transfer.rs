//! One request and its reply.
//!
//! Invariant: what is received is written before the next wait, so that a dropped transfer loses
//! nothing that the kernel had delivered; hashing and writing happen on blocking threads.
//! Failure: an error leaves the partial continuable, unless it says otherwise.

use futures_util::FutureExt as _;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::time::{Duration, Instant};

use super::super::error::Result;
use super::super::format::{HEAD, head_of};
use super::super::partial::{Handle, Note, Validators};
use super::super::progress::Meter;
use super::super::unpack::Packing;
use super::reply;
use super::request::Request;

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
            .read(|p| (p.received(), p.is_whole(), p.note().clone()));
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
        self.request.plain(headers)?;
        let total = reply::length(headers);
        let location = self.request.target.source.location();
        let note = Note::new(location, reply::validators(headers), total);
        self.partial.work(move |p| p.restart(note)).await?;
        self.body(response, total).await
    }

    async fn body(&self, mut response: Response, total: Option<u64>) -> Result<Ending> {
        let mut received = self.partial.read(|p| p.received());
        self.request.fits(total.unwrap_or_default())?;
        let downloader = self.request.downloader;
        let claimed = downloader.room.claim(total.unwrap_or(received));
        let mut claim = claimed.map_err(Request::crowded)?;
        downloader.trim(self.partial.dir()).await?;
        let first = total.unwrap_or_else(|| received.saturating_add(BATCH as u64));
        let space = downloader.space.clone();
        let mut place = self.partial.claim_space(space, first, first).await?;
        let mut judged = received >= HEAD;
        let mut pace = Pace::new(downloader.stall_timeout, downloader.min_rate);
        let mut batch = Vec::new();
        loop {
            let ready = response.chunk().now_or_never();
            if ready.is_none() || batch.len() >= BATCH {
                self.write(&mut batch, received, total).await?;
                let next = received.saturating_add(BATCH as u64);
                let needed = total.unwrap_or(next);
                place = self.partial.more_space(place, needed).await?;
                if !judged && received >= HEAD {
                    judged = true;
                    self.judge(total).await?;
                }
            }
            let next = match ready {
                Some(next) => next,
                None => self.request.in_time(response.chunk()).await?,
            };
            match next {
                Ok(Some(chunk)) => {
                    received += chunk.len() as u64;
                    self.request.fits(received)?;
                    claim.at_least(received).map_err(Request::crowded)?;
                    if pace.is_too_slow(chunk.len() as u64) {
                        batch.extend_from_slice(&chunk);
                        self.write(&mut batch, received, total).await?;
                        return Err(self.request.slow());
                    }
                    batch.extend_from_slice(&chunk);
                }
                Ok(None) => break,
                Err(error) => {
                    self.write(&mut batch, received, total).await?;
                    return Err(self.request.cut(error, received, total));
                }
            }
        }
        self.write(&mut batch, received, total).await?;
        match total {
            Some(total) if total != received => Err(self.request.truncated(received, total)),
            _ => Ok(Ending::Whole),
        }
    }

    /// Refuses a file by its first bytes, before the rest comes.
    async fn judge(&self, total: Option<u64>) -> Result<()> {
        if !self.request.target.is_disk {
            return Ok(());
        }
        let head = self.partial.work(|p| head_of(p.file())).await?;
        if Packing::of(&head).is_some() {
            return Ok(());
        }
        let judged = self.request.downloader.rules.judge(&head, total);
        judged
            .map(drop)
            .map_err(|reason| self.request.unfit(reason))
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
