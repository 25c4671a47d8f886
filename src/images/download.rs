//! One file over HTTP into a partial file: whole, continued, or found unchanged; or only its first
//! bytes.
//!
//! Invariant: bytes are only appended to bytes of the same version of the file, which the server
//! confirms by `If-Range`; size limits hold while streaming; passing troubles are retried, three
//! times at most.
//! Failure: the partial stays if the next pull can use it, and is removed if not (too large, disk
//! full).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, StatusCode};

use super::addresses::Guard;
use super::adjustable::Live;
use super::convertible::Convertible;
use super::error::{Error, Result};
use super::format::{RawData, Rules};
use super::partial::{Handle, Partial, Room, RoomClaim, Validators};
use super::progress::Meter;
use super::settings::Settings;
use super::translate::Source;
use super::transport::Transport;
use crate::space::{Claim, Space};

mod peek;
mod reply;
mod request;
mod small;
mod transfer;

pub(super) use peek::Head;
use request::Request;
pub(super) use small::{Call, Small};
use transfer::{Ending, Transfer};

const RETRIES: u32 = 3;

/// A file, and how its server is reached.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) source: Source,
    /// A client with the certificates for this server; `None`: that of all servers.
    pub(super) client: Option<Client>,
    /// Longest time of a download, with its repetitions.
    pub(super) timeout: Option<Duration>,
    /// Headers of each request. A redirect to another host goes without those that are secret.
    pub(super) headers: HeaderMap,
    /// Whether the file itself is to be a disk, and is refused by its first bytes if not.
    pub(super) is_disk: bool,
}

impl Target {
    /// A disk that any client may fetch.
    pub(super) fn for_source(source: Source) -> Self {
        let transport = source.transport();
        Self {
            client: transport.map(|transport| transport.client().clone()),
            timeout: transport.and_then(Transport::timeout),
            source,
            headers: HeaderMap::new(),
            is_disk: true,
        }
    }

    /// What the status of a short reply means that was not requested.
    pub(super) fn refused(&self, status: StatusCode) -> Error {
        let location = self.source.location();
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound {
                location,
                status: status.to_string(),
            },
            _ => Error::Refused {
                location,
                code: status.as_u16(),
                status: status.to_string(),
            },
        }
    }
}

/// How a download ended well.
#[derive(Debug)]
pub(super) enum Fetched {
    /// The server's file is still the one that the known validators are of.
    Unchanged,
    /// All bytes are in the partial.
    Whole(Handle),
}

/// Fetches files within the limits of the settings.
#[derive(Debug)]
pub(super) struct Downloader {
    client: Client,
    guard: Guard,
    live: Arc<Live>,
    convert: Vec<Convertible>,
    raw_data: RawData,
    space: Space,
    min_rate: u64,
    room: Room,
    connect_timeout: Duration,
    stall_timeout: Duration,
    retry_wait: Duration,
}

impl Downloader {
    pub(super) fn new(client: Client, guard: Guard, settings: &Settings, live: Arc<Live>) -> Self {
        Self {
            client,
            guard,
            live,
            convert: Rules::from(settings).convert,
            raw_data: settings.raw_data,
            space: settings.space.clone(),
            min_rate: settings.min_rate,
            room: Room::new(settings.max_partial_bytes),
            connect_timeout: settings.connect_timeout,
            stall_timeout: settings.stall_timeout,
            retry_wait: settings.retry_wait,
        }
    }

    /// Fetches a file into `partial`. With `known`, the validators of a file that we have, an
    /// unchanged file is not sent again. Dropping the future keeps what was received.
    pub(super) async fn fetch(
        &self,
        target: &Target,
        partial: Handle,
        known: Option<&Validators>,
        meter: &Meter,
    ) -> Result<Fetched> {
        let transfer = Transfer {
            request: self.request(target),
            partial: &partial,
            meter,
        };
        let ended = self.persist(target, || transfer.attempt(known)).await;
        // At the end of its time a transfer is dropped, and its last write goes on.
        partial.settle().await;
        let continuable = partial.read(|p| p.received() > 0).await;
        match ended {
            Ok(Ending::Whole) => {
                partial.read(Partial::complete).await;
                return Ok(Fetched::Whole(partial));
            }
            Err(error) if continuable && is_kept_after(&error) => return Err(error),
            _ => partial.discard().await?,
        }
        ended.map(|_| Fetched::Unchanged)
    }

    /// Looks at the first `most` bytes of a file; nothing is kept.
    pub(super) async fn peek(&self, target: &Target, most: u64) -> Result<Head> {
        let request = self.request(target);
        self.persist(target, || request.peek(most)).await
    }

    /// Sends one call whose reply is short, and repeats it as a download is repeated.
    pub(super) async fn call(&self, target: &Target, call: &Call<'_>) -> Result<Small> {
        let request = self.request(target);
        self.persist(target, || request.small(call)).await
    }

    /// Tries until it succeeds, fails for good, has failed too often, or the target's time is over.
    async fn persist<T, F>(&self, target: &Target, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let Some(limit) = target.timeout else {
            return self.repeat(attempt).await;
        };
        let ended = tokio::time::timeout(limit, self.repeat(attempt)).await;
        ended.unwrap_or_else(|_| {
            Err(Error::Overdue {
                location: target.source.location(),
                ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            })
        })
    }

    async fn repeat<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut retries = 0;
        loop {
            match attempt().await {
                Err(error) if retries < RETRIES && is_tried_again(&error) => {
                    tracing::debug!(%error, retries, "image download interrupted");
                    tokio::time::sleep(self.retry_wait * 2_u32.pow(retries)).await;
                    retries += 1;
                }
                ended => return ended,
            }
        }
    }

    /// Removes partial downloads that are stale, or are too much; returns how many.
    pub(super) async fn trim(&self, dir: Arc<Path>) -> Result<usize> {
        let room = self.room.clone();
        let failed = Error::io("remove partial downloads in", dir.to_path_buf());
        let trimmed = tokio::task::spawn_blocking(move || room.trim(&dir)).await?;
        trimmed.map_err(failed)
    }

    /// Claims room and space for a file that is made of a download: `most` bytes, or as many as
    /// there are, but not less than `least`.
    pub(super) async fn claim(
        &self,
        file: &Handle,
        least: u64,
        most: u64,
    ) -> Result<(RoomClaim, Claim)> {
        let claimed = self.room.claim_up_to(least, most);
        let claimed = claimed.map_err(Request::crowded)?;
        self.trim(file.dir()).await?;
        let space = file.claim_space(self.space.clone(), least, most).await?;
        Ok((claimed, space))
    }

    /// The error of a file that found no room beside the downloads.
    pub(super) const fn crowded(&self) -> Error {
        Error::Crowded {
            limit: self.room.limit(),
        }
    }

    pub(super) fn max_bytes(&self) -> u64 {
        let most = self.live.get().max_download_bytes;
        most.min(i64::MAX.unsigned_abs())
    }

    /// The rules that hold now.
    pub(super) fn rules(&self) -> Rules {
        Rules {
            max_virtual_bytes: self.live.get().max_virtual_bytes,
            convert: self.convert.clone(),
            raw_data: self.raw_data,
        }
    }

    const fn request<'a>(&'a self, target: &'a Target) -> Request<'a> {
        Request {
            downloader: self,
            target,
        }
    }
}

/// Whether a request is repeated at once. A server that is slow now is left to a later pull.
const fn is_tried_again(error: &Error) -> bool {
    error.is_passing() && !matches!(error, Error::Slow { .. })
}

/// Whether the bytes received so far are of use to a later pull.
pub(super) fn is_kept_after(error: &Error) -> bool {
    !matches!(
        error,
        Error::TooLarge { .. } | Error::NoSpace { .. } | Error::Io { .. } | Error::Format { .. }
    )
}
