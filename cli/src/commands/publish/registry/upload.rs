//! The upload of a blob: in pieces, or as one [stream](super::stream) to a registry that refuses them.
//!
//! Invariant: a piece is in memory until the registry has it. After a failure the registry is asked how much it has, and
//! the rest follows; so no byte is sent into a wrong place. The digest is that of all bytes that were written.
//! Failure: [`RegistryError::Lost`] when the registry does not know the upload any more, or has another part of it; a piece that cannot be
//! sent for [`IDLE`] is an error.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::stream::BlobStream;
use super::{ANSWER, Call, IDLE, Registry, RegistryError, Reply, is_passing};
use crate::commands::publish::container_disk::hex;

/// Bytes of a piece.
pub(super) const PIECE: usize = 8 << 20;

/// Time for a piece: a slow line takes one in less.
const SEND: Duration = Duration::from_secs(600);

/// Time for the registry to check a blob of any size.
const CHECK: Duration = Duration::from_secs(3600);

/// The least that a piece has, as the registry says.
const LEAST: &str = "oci-chunk-min-length";

/// An upload in progress.
#[derive(Debug)]
pub(in crate::commands::publish) struct Upload {
    /// Where the next piece goes.
    location: Url,
    piece: usize,
    /// Bytes that the registry has.
    sent: u64,
    /// Bytes that follow.
    rest: Vec<u8>,
    /// Of all that was written.
    sum: Sha256,
    /// It is one request in place of pieces.
    is_stream: bool,
    /// That request, from the first byte on.
    stream: Option<BlobStream>,
}

/// A blob that the registry has.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands::publish) struct UploadedBlob {
    /// `sha256:…`.
    pub(in crate::commands::publish) digest: String,
    pub(in crate::commands::publish) size: u64,
}

impl Upload {
    pub(in crate::commands::publish) async fn begin(
        registry: &mut Registry,
    ) -> Result<Self, RegistryError> {
        let call = registry.call(Method::POST, "blobs/uploads/")?;
        let reply = registry.persist(&call).await?;
        if reply.status != StatusCode::ACCEPTED {
            return Err(registry.refused("begin an upload", &reply));
        }
        let least = reply.headers.get(LEAST);
        let least = least.and_then(|value| value.to_str().ok()?.parse().ok());
        // While a larger piece is on its way, the node would take this program for one that has left.
        let takes_ours = least.is_none_or(|least: usize| least <= registry.piece);
        Ok(Self {
            location: registry.location(&reply)?,
            is_stream: !(registry.takes_pieces && takes_ours),
            stream: None,
            piece: registry.piece,
            sent: 0,
            rest: Vec::new(),
            sum: Sha256::new(),
        })
    }

    /// Takes the next bytes.
    pub(in crate::commands::publish) async fn write(
        &mut self,
        registry: &mut Registry,
        bytes: &[u8],
    ) -> Result<(), RegistryError> {
        self.sum.update(bytes);
        if self.is_stream {
            let begin = || BlobStream::begin(registry, &self.location);
            let stream = self.stream.get_or_insert_with(begin);
            self.sent += bytes.len() as u64;
            if stream.write(Bytes::copy_from_slice(bytes)).await? {
                return Ok(());
            }
            // An answer before the end is none of success.
            self.end_stream(registry).await?;
            return Err(RegistryError::Lost);
        }
        self.rest.extend_from_slice(bytes);
        while self.rest.len() >= self.piece {
            let rest = self.rest.split_off(self.piece);
            let piece = std::mem::replace(&mut self.rest, rest);
            self.send(registry, piece.into()).await?;
        }
        Ok(())
    }

    /// Sends what is left, and lets the registry check the blob.
    pub(in crate::commands::publish) async fn finish(
        mut self,
        registry: &mut Registry,
    ) -> Result<UploadedBlob, RegistryError> {
        let last = std::mem::take(&mut self.rest);
        if !last.is_empty() {
            self.send(registry, last.into()).await?;
        }
        self.end_stream(registry).await?;
        let digest = format!("sha256:{}", hex(&self.sum.clone().finalize()));
        let mut url = self.location.clone();
        url.query_pairs_mut().append_pair("digest", &digest);
        let call = call(Method::PUT, url, CHECK);
        let begin = Instant::now();
        loop {
            let put = registry.send(&call).await;
            let is_last = begin.elapsed() >= IDLE;
            match put {
                Ok(reply) if matches!(reply.status, StatusCode::CREATED | StatusCode::OK) => break,
                // The answer to an earlier request may have been lost.
                Ok(reply) if !is_passing(reply.status) || is_last => {
                    if registry.has_blob(&digest).await? {
                        break;
                    }
                    return Err(self.refused(registry, "take the disk", &reply));
                }
                Err(error) if !error.is_of_network() || is_last => return Err(error),
                _ => tokio::time::sleep(registry.pause).await,
            }
        }
        Ok(UploadedBlob {
            digest,
            size: self.sent,
        })
    }

    /// The registry may forget it; one that does not learn of that does so by itself.
    pub(in crate::commands::publish) async fn cancel(self, registry: &mut Registry) {
        let call = call(Method::DELETE, self.location, ANSWER);
        let _ = registry.send(&call).await;
    }

    /// Waits until the registry has answered to a stream, if it is one.
    async fn end_stream(&mut self, registry: &Registry) -> Result<(), RegistryError> {
        let Some(stream) = self.stream.take() else {
            return Ok(());
        };
        let reply = stream.answer().await?;
        if !reply.status.is_success() {
            return Err(self.refused(registry, "take the disk", &reply));
        }
        self.location = registry.location(&reply)?;
        Ok(())
    }

    /// Sends a piece, and again what the registry has not got of it.
    async fn send(
        &mut self,
        registry: &mut Registry,
        mut piece: Bytes,
    ) -> Result<(), RegistryError> {
        let mut begin = Instant::now();
        loop {
            let patched = registry.send(&self.patch(&piece)?).await;
            let failed = match patched {
                Ok(reply) if reply.status.is_success() => {
                    self.location = registry.location(&reply)?;
                    self.sent += piece.len() as u64;
                    return Ok(());
                }
                // The registry has another part of the upload than it should.
                Ok(reply) if reply.status == StatusCode::RANGE_NOT_SATISFIABLE => None,
                Ok(reply) if is_passing(reply.status) => {
                    Some(self.refused(registry, "take a piece of the disk", &reply))
                }
                Ok(reply) if refuses_pieces(reply.status) => {
                    registry.takes_pieces = false;
                    return Err(RegistryError::Lost);
                }
                Ok(reply) => {
                    return Err(self.refused(registry, "take a piece of the disk", &reply));
                }
                Err(error) if error.is_of_network() => Some(error),
                Err(error) => return Err(error),
            };
            let is_wrong = failed.is_none();
            if let Some(error) = failed {
                if begin.elapsed() >= IDLE {
                    return Err(error);
                }
                tokio::time::sleep(registry.pause).await;
            }
            let has = self.progress(registry).await?;
            let got = has.checked_sub(self.sent).ok_or(RegistryError::Lost)?;
            let got = usize::try_from(got).ok().filter(|got| *got <= piece.len());
            let got = got.ok_or(RegistryError::Lost)?;
            if got > 0 {
                begin = Instant::now();
            } else if is_wrong {
                // The same piece at the same place would be refused again.
                registry.takes_pieces = false;
                return Err(RegistryError::Lost);
            }
            self.sent = has;
            drop(piece.split_to(got));
            if piece.is_empty() {
                return Ok(());
            }
        }
    }

    fn patch(&self, piece: &Bytes) -> Result<Call, RegistryError> {
        let end = self.sent + piece.len() as u64;
        let range = format!("{}-{}", self.sent, end.saturating_sub(1));
        let mut call = call(Method::PATCH, self.location.clone(), SEND);
        let range = HeaderValue::from_str(&range);
        call.headers.extend([
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/octet-stream"),
            ),
            (
                header::CONTENT_RANGE,
                range.map_err(|_| RegistryError::Lost)?,
            ),
        ]);
        call.body = piece.clone();
        Ok(call)
    }

    /// How many bytes the registry has.
    async fn progress(&mut self, registry: &mut Registry) -> Result<u64, RegistryError> {
        let call = call(Method::GET, self.location.clone(), ANSWER);
        let reply = registry.persist(&call).await?;
        if !reply.status.is_success() {
            // Not every registry says how far an upload is.
            return Err(RegistryError::Lost);
        }
        // An upload without bytes has no range, or `0-0`, which one with a byte has as well.
        let range = reply.headers.get(header::RANGE);
        let range = range.and_then(|range| range.to_str().ok()?.split_once('-'));
        let last: Option<u64> = range.and_then(|(_, last)| last.trim().parse().ok());
        if let Ok(location) = registry.location(&reply) {
            self.location = location;
        }
        Ok(match last {
            None | Some(0) => 0,
            Some(last) => last.saturating_add(1),
        })
    }

    /// What an answer means that is none of success.
    fn refused(&self, registry: &Registry, step: &'static str, reply: &Reply) -> RegistryError {
        match reply.status {
            // Uploads expire, and a registry that was restarted may know none.
            StatusCode::NOT_FOUND | StatusCode::GONE => RegistryError::Lost,
            _ => registry.refused(step, reply),
        }
    }
}

/// Whether a registry may take the same blob as one stream.
fn refuses_pieces(status: StatusCode) -> bool {
    let refusals = [
        StatusCode::BAD_REQUEST,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::LENGTH_REQUIRED,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::NOT_IMPLEMENTED,
    ];
    refusals.contains(&status)
}

fn call(method: Method, url: Url, time: Duration) -> Call {
    Call {
        method,
        url,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        time,
    }
}
