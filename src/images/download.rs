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

use reqwest::Client;

use super::addresses::Guard;
use super::error::{Error, Result};
use super::partial::{Handle, Room, Validators};
use super::progress::Meter;
use super::settings::Settings;
use super::translate::Source;
use crate::space::Space;

mod peek;
mod reply;
mod request;
mod transfer;

pub(super) use peek::Head;
use request::Request;
use transfer::{Ending, Transfer};

const RETRIES: u32 = 3;

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
    max_bytes: u64,
    max_virtual_bytes: u64,
    space: Space,
    min_rate: u64,
    room: Room,
    connect_timeout: Duration,
    stall_timeout: Duration,
    retry_wait: Duration,
}

impl Downloader {
    pub(super) fn new(client: Client, guard: Guard, settings: &Settings) -> Self {
        Self {
            client,
            guard,
            max_bytes: settings.max_download_bytes.min(i64::MAX.unsigned_abs()),
            max_virtual_bytes: settings.max_virtual_bytes,
            space: settings.space.clone(),
            min_rate: settings.min_rate,
            room: Room::new(settings.max_partial_bytes),
            connect_timeout: settings.connect_timeout,
            stall_timeout: settings.stall_timeout,
            retry_wait: settings.retry_wait,
        }
    }

    /// Fetches `source` into `partial`. With `known`, the validators of a file that we have, an
    /// unchanged file is not sent again. Dropping the future keeps what was received.
    pub(super) async fn fetch(
        &self,
        source: &Source,
        partial: Handle,
        known: Option<&Validators>,
        meter: &Meter,
    ) -> Result<Fetched> {
        let transfer = Transfer {
            request: self.request(source),
            partial: &partial,
            meter,
        };
        let ended = self.persist(|| transfer.attempt(known)).await;
        let continuable = partial.read(|p| p.received() > 0);
        match ended {
            Ok(Ending::Whole) => return Ok(Fetched::Whole(partial)),
            Err(error) if continuable && is_kept_after(&error) => return Err(error),
            _ => partial.discard().await?,
        }
        ended.map(|_| Fetched::Unchanged)
    }

    /// Looks at the beginning of `source`; nothing is kept.
    pub(super) async fn peek(&self, source: &Source) -> Result<Head> {
        let request = self.request(source);
        self.persist(|| request.peek()).await
    }

    /// Tries until it succeeds, fails for good, or has failed too often.
    async fn persist<T, F>(&self, attempt: impl Fn() -> F) -> Result<T>
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

    const fn request<'a>(&'a self, source: &'a Source) -> Request<'a> {
        Request {
            downloader: self,
            source,
        }
    }
}

/// Whether a request is repeated at once. A server that is slow now is left to a later pull.
const fn is_tried_again(error: &Error) -> bool {
    error.is_passing() && !matches!(error, Error::Slow { .. })
}

/// Whether the bytes received so far are of use to a later pull.
fn is_kept_after(error: &Error) -> bool {
    !matches!(
        error,
        Error::TooLarge { .. } | Error::NoSpace { .. } | Error::Io { .. } | Error::Format { .. }
    )
}
