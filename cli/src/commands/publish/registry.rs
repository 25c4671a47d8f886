//! A registry that takes an image, by the API of the OCI distribution specification.
//!
//! Invariant: credentials go to the registry that they are for and to the authorization service that it names, never
//! over http unless the user chose that. Every request has a deadline, every answer that is read has a bound. No redirect
//! is followed.
//! Failure: [`RegistryError`]; a failure that may pass is repeated for [`IDLE`].

mod authorization;
mod error;
mod stream;
mod upload;

use std::time::Duration;

use oci_spec::distribution::Reference;
use registry_auth::api_host;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Method, StatusCode, Url};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

pub(super) use error::RegistryError;
pub(super) use upload::Upload;

use super::container_disk::{Layer, hex, layer_in};
use super::credentials::Credentials;

/// Time in which requests that fail are repeated.
const IDLE: Duration = Duration::from_secs(180);

/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(2);

/// Time to connect.
const CONNECT: Duration = Duration::from_secs(30);

/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Most of an answer that is read.
const LIMIT: usize = 256 << 10;

/// Media type of the manifest.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// How the registry is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    Http,
    Https,
}

/// The registry of one image.
pub(super) struct Registry {
    client: Client,
    /// `https://HOST/v2/NAME/`.
    base: Url,
    /// As users name it.
    host: String,
    repository: String,
    credentials: Option<Credentials>,
    authorization: Option<HeaderValue>,
    /// It has answered before.
    is_reached: bool,
    /// It takes blobs in pieces, as far as it is known.
    takes_pieces: bool,
    /// Bytes of a piece.
    piece: usize,
    /// Time between two tries of a request.
    pause: Duration,
}

/// Bytes with their digest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blob {
    /// `sha256:…`.
    pub(super) digest: String,
    pub(super) bytes: Vec<u8>,
}

/// A request.
#[derive(Debug, Clone)]
struct Call {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: bytes::Bytes,
    time: Duration,
}

/// An answer.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    /// The beginning of it.
    body: Vec<u8>,
    url: Url,
}

impl Registry {
    pub(super) fn new(
        image: &Reference,
        connection: Connection,
        credentials: Option<Credentials>,
    ) -> Result<Self, RegistryError> {
        let host = image.registry();
        let server = api_host(host);
        let scheme = match connection {
            Connection::Http => "http",
            Connection::Https => "https",
        };
        let repository = image.repository();
        let base = Url::parse(&format!("{scheme}://{server}/v2/{repository}/"));
        let base = base.map_err(|_| RegistryError::Name(host.to_owned()))?;
        let client = Client::builder()
            .user_agent(concat!("vmletctl/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .referer(false)
            .redirect(Policy::none())
            .build();
        Ok(Self {
            client: client.map_err(RegistryError::Client)?,
            base,
            host: host.to_owned(),
            repository: repository.to_owned(),
            authorization: credentials.as_ref().and_then(Credentials::bearer),
            credentials,
            is_reached: false,
            takes_pieces: true,
            piece: upload::PIECE,
            pause: PAUSE,
        })
    }

    /// Finds out whether the registry takes the image, and from whom.
    pub(super) async fn authorize(&mut self) -> Result<(), RegistryError> {
        let upload = Upload::begin(self).await?;
        upload.cancel(self).await;
        Ok(())
    }

    /// The layer that a tag leads to, if it is one of ours and is there.
    pub(super) async fn published(&mut self, tag: &str) -> Result<Option<Layer>, RegistryError> {
        let mut call = self.call(Method::GET, &format!("manifests/{tag}"))?;
        let kind = HeaderValue::from_static(MANIFEST);
        call.headers.insert(header::ACCEPT, kind);
        let reply = self.persist(&call).await?;
        let layer = Some(&reply).filter(|reply| reply.status == StatusCode::OK);
        match layer.and_then(|reply| layer_in(&reply.body)) {
            Some(layer) if self.has_blob(&layer.digest).await? => Ok(Some(layer)),
            _ => Ok(None),
        }
    }

    /// Uploads a small blob, unless it is there.
    pub(super) async fn put_blob(&mut self, blob: &Blob) -> Result<(), RegistryError> {
        if self.has_blob(&blob.digest).await? {
            return Ok(());
        }
        match self.upload(&blob.bytes).await {
            Err(RegistryError::Lost) => self.upload(&blob.bytes).await,
            uploaded => uploaded,
        }
    }

    async fn upload(&mut self, bytes: &[u8]) -> Result<(), RegistryError> {
        let mut upload = Upload::begin(self).await?;
        upload.write(self, bytes).await?;
        upload.finish(self).await.map(drop)
    }

    /// Writes the manifest under a tag; returns its digest.
    pub(super) async fn put_manifest(
        &mut self,
        tag: &str,
        manifest: &[u8],
    ) -> Result<String, RegistryError> {
        let mut call = self.call(Method::PUT, &format!("manifests/{tag}"))?;
        let kind = HeaderValue::from_static(MANIFEST);
        call.headers.insert(header::CONTENT_TYPE, kind);
        call.body = manifest.to_vec().into();
        let reply = self.persist(&call).await?;
        match reply.status {
            StatusCode::CREATED | StatusCode::OK => Ok(digest(manifest)),
            _ => Err(self.refused("take the manifest of the image", &reply)),
        }
    }

    async fn has_blob(&mut self, digest: &str) -> Result<bool, RegistryError> {
        let call = self.call(Method::HEAD, &format!("blobs/{digest}"))?;
        let status = self.persist(&call).await?.status;
        // Some lead to the storage that has it.
        Ok(status.is_success() || status.is_redirection())
    }

    /// A request for `path` below the repository.
    fn call(&self, method: Method, path: &str) -> Result<Call, RegistryError> {
        let url = self.base.join(path);
        Ok(Call {
            method,
            url: url.map_err(|_| RegistryError::Name(self.host.clone()))?,
            headers: HeaderMap::new(),
            body: bytes::Bytes::new(),
            time: ANSWER,
        })
    }

    /// Repeats a request that may be made several times, while its failure may pass.
    async fn persist(&mut self, call: &Call) -> Result<Reply, RegistryError> {
        let begin = Instant::now();
        loop {
            let sent = self.send(call).await;
            let is_last = begin.elapsed() >= IDLE;
            match sent {
                Ok(reply) if is_last || !is_passing(reply.status) => return Ok(reply),
                // One that never answers has another name, or a certificate that is not trusted.
                Err(error) if is_last || !error.is_of_network() || !self.is_reached => {
                    return Err(error);
                }
                _ => tokio::time::sleep(self.pause).await,
            }
        }
    }

    /// The answer to a request, with the authorization that the registry demands.
    async fn send(&mut self, call: &Call) -> Result<Reply, RegistryError> {
        let reply = self.exchange(call, self.authorization.as_ref()).await?;
        self.is_reached = true;
        if reply.status != StatusCode::UNAUTHORIZED || !self.is_own(&call.url) {
            return Ok(reply);
        }
        // None yet, or one that has expired.
        self.authorization = None;
        let authorization = self.demanded(&reply).await?;
        let reply = self.exchange(call, Some(&authorization)).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            return Err(self.unauthorized());
        }
        self.authorization = Some(authorization);
        Ok(reply)
    }

    async fn exchange(
        &self,
        call: &Call,
        authorization: Option<&HeaderValue>,
    ) -> Result<Reply, RegistryError> {
        let unreachable = |source: reqwest::Error| RegistryError::Reach {
            host: self.host.clone(),
            // It may have what a server gave for this upload alone.
            source: source.without_url(),
        };
        let mut headers = call.headers.clone();
        if let Some(value) = authorization.filter(|_| self.is_own(&call.url)) {
            headers.insert(header::AUTHORIZATION, value.clone());
        }
        let request = self.client.request(call.method.clone(), call.url.clone());
        let request = request.headers(headers).timeout(call.time);
        // Servers demand a length, also of nothing.
        let request = match call.method {
            Method::GET | Method::HEAD | Method::DELETE => request,
            _ => request
                .header(header::CONTENT_LENGTH, call.body.len())
                .body(Body::from(call.body.clone())),
        };
        let response = request.send().await.map_err(unreachable)?;
        read(response, call.url.clone()).await.map_err(unreachable)
    }

    /// Whether a URL is one of the registry itself.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Where a reply says that an upload goes on.
    fn location(&self, reply: &Reply) -> Result<Url, RegistryError> {
        let location = reply.headers.get(header::LOCATION);
        let location = location.and_then(|location| location.to_str().ok());
        let url = location.and_then(|location| reply.url.join(location).ok());
        let is_safe = |url: &Url| match self.base.scheme() {
            "https" => url.scheme() == "https",
            _ => matches!(url.scheme(), "http" | "https"),
        };
        url.filter(is_safe)
            .ok_or_else(|| RegistryError::Protocol(self.host.clone()))
    }
}

impl Blob {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self {
            digest: digest(&bytes),
            bytes,
        }
    }
}

/// Reads the beginning of an answer.
async fn read(mut response: reqwest::Response, url: Url) -> reqwest::Result<Reply> {
    let mut body = Vec::new();
    while body.len() < LIMIT
        && let Some(piece) = response.chunk().await?
    {
        body.extend_from_slice(&piece);
    }
    body.truncate(LIMIT);
    Ok(Reply {
        status: response.status(),
        headers: response.headers().clone(),
        body,
        url,
    })
}

/// Whether the same request may succeed later.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests;
