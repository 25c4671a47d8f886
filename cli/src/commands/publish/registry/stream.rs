//! The upload of a blob as one request, to registries that take no pieces.
//!
//! Invariant: bytes are in memory until the connection takes them. An upload that is dropped ends its request early, so
//! that no part of a blob passes for all of it.
//! Failure: [`RegistryError::Lost`] for a connection that breaks or takes nothing for [`IDLE`]: the upload has to begin again.

use std::io;

use bytes::Bytes;
use reqwest::header::{self, HeaderValue};
use reqwest::{Body, Method, Url};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::{IDLE, Registry, RegistryError, Reply, read};

/// A request whose body follows.
#[derive(Debug)]
pub(super) struct BlobStream {
    /// `None` at the end.
    pieces: Option<mpsc::Sender<io::Result<Bytes>>>,
    answer: JoinHandle<Result<Reply, RegistryError>>,
}

impl BlobStream {
    pub(super) fn begin(registry: &Registry, location: &Url) -> Self {
        let (pieces, received) = mpsc::channel(1);
        let mut request = registry.client.request(Method::PATCH, location.clone());
        if let Some(value) = &registry.authorization
            && registry.is_own(location)
        {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        let kind = HeaderValue::from_static("application/octet-stream");
        let request = request.header(header::CONTENT_TYPE, kind);
        let request = request.body(Body::wrap_stream(ReceiverStream::new(received)));
        let url = location.clone();
        let answer = tokio::spawn(async move {
            let response = request.send().await.map_err(|_| RegistryError::Lost)?;
            read(response, url).await.map_err(|_| RegistryError::Lost)
        });
        Self {
            pieces: Some(pieces),
            answer,
        }
    }

    /// Sends the next bytes; false when the registry has answered before the end.
    pub(super) async fn write(&self, bytes: Bytes) -> Result<bool, RegistryError> {
        let Some(pieces) = &self.pieces else {
            return Ok(false);
        };
        let sent = timeout(IDLE, pieces.send(Ok(bytes))).await;
        Ok(sent.map_err(|_| RegistryError::Lost)?.is_ok())
    }

    /// The answer of the registry, which has all bytes by then.
    pub(super) async fn answer(mut self) -> Result<Reply, RegistryError> {
        self.pieces = None;
        let answer = timeout(IDLE, &mut self.answer).await;
        let answer = answer.map_err(|_| RegistryError::Lost)?;
        answer.map_err(|_| RegistryError::Lost)?
    }
}

impl Drop for BlobStream {
    fn drop(&mut self) {
        self.answer.abort();
    }
}
