//! Requests to a server that speaks S3, for one bucket.
//!
//! Invariant: each request has a deadline and is sent again a few times, so it can be repeated; an answer is read up to a
//! bound. Credentials are read for each request, from a file that only its owner reads: they are in no log, no error and no
//! other memory. No redirect is followed: a signature is for one server.
//! Failure: [`Error::Bucket`] with the words of the server, or [`Error::Hung`].

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use reqwest::header::{self, HeaderMap};
use reqwest::{Certificate, Response, StatusCode, Url};
use rusty_s3::{Bucket, Credentials, Method, UrlStyle, signing};
use tokio::sync::{OnceCell, Semaphore};

mod answers;
mod credentials;
mod objects;
mod upload;

pub(super) use upload::blocking;

use super::error::{Error, Result};

/// A signature is worth nothing after this: as much as clocks may differ.
const VALID: Duration = Duration::from_secs(900);

/// Time to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// How often a request is sent.
const TRIES: u32 = 4;

/// The longest list or message of an error in bytes.
const TEXT: usize = 4 << 20;

/// The longest entity tag in bytes.
const ETAG: usize = 256;

/// What parts in memory may have together, in MiB.
const MEMORY: usize = 128;

const USER_AGENT: &str = concat!("vmlet/", env!("CARGO_PKG_VERSION"));

/// A bucket, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// URL of the server: a scheme and a host.
    pub endpoint: Url,
    /// The bucket.
    pub bucket: String,
    /// What all names begin with: empty, or with a slash at its end.
    pub prefix: String,
    /// Region of the bucket.
    pub region: String,
    /// Where the name of the bucket is in URLs.
    pub style: Style,
    /// The file with the credentials.
    pub credentials: PathBuf,
    /// The file of the certificate authorities that are trusted; none: those of the system.
    pub ca: Option<PathBuf>,
    /// Time for one request.
    pub deadline: Duration,
    /// Time until a request is sent again; it doubles.
    pub pause: Duration,
}

/// Where the name of a bucket is in URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// In the path.
    Path,
    /// In the name of the host.
    Host,
}

/// A client for one bucket.
#[derive(Debug)]
pub(super) struct Client {
    target: String,
    settings: Settings,
    /// Made by the first request: it reads files.
    connection: OnceCell<Connection>,
    /// MiB that parts may still have.
    memory: Arc<Semaphore>,
    /// The place of a thread that reads files of the node: one that hangs keeps it.
    files: Arc<Semaphore>,
}

#[derive(Debug)]
struct Connection {
    http: reqwest::Client,
    bucket: Bucket,
}

/// A request.
#[derive(Debug)]
struct Call<'a> {
    /// What is to be done, for people.
    step: &'static str,
    method: Method,
    /// Of the object; empty: the bucket itself.
    key: &'a str,
    query: Vec<(&'static str, Cow<'a, str>)>,
    /// The first and the last byte that are requested.
    range: Option<(u64, u64)>,
    body: Bytes,
    /// The most bytes of the answer that are read.
    most: usize,
}

/// What a server answers.
#[derive(Debug)]
struct Answer {
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Why an attempt has no answer.
#[derive(Debug)]
enum Failed {
    /// The server may answer the same request soon.
    Busy(String),
    /// It does not answer.
    Hung,
    /// Something has to be changed before.
    Refused(String),
}

impl Settings {
    /// A bucket in the region that servers without regions have, with its name in paths.
    pub fn new(endpoint: Url, bucket: &str, credentials: PathBuf) -> Self {
        Self {
            endpoint,
            bucket: bucket.to_owned(),
            prefix: String::new(),
            region: "us-east-1".to_owned(),
            style: Style::Path,
            credentials,
            ca: None,
            deadline: super::DEADLINE,
            pause: Duration::from_secs(1),
        }
    }
}

impl<'a> Call<'a> {
    const fn new(step: &'static str, method: Method, key: &'a str) -> Self {
        Self {
            step,
            method,
            key,
            query: Vec::new(),
            range: None,
            body: Bytes::new(),
            most: TEXT,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<Cow<'a, str>>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    fn body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// Whether the answer is XML.
    const fn is_document(&self) -> bool {
        self.key.is_empty() || matches!(self.method, Method::Post)
    }
}

impl Client {
    pub(super) fn new(target: &str, settings: Settings) -> Self {
        Self {
            target: target.to_owned(),
            settings,
            connection: OnceCell::new(),
            memory: Arc::new(Semaphore::new(MEMORY)),
            files: Arc::new(Semaphore::new(1)),
        }
    }

    /// The name of the target.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// What the names of all objects begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// Sends a request until it is answered; none: there is no such object or upload.
    async fn call(&self, call: &Call<'_>) -> Result<Option<Answer>> {
        if !call.key.is_empty() && !is_plain(call.key) {
            let reason = "its name would be read as another one".to_owned();
            return Err(self.failed(call, reason));
        }
        let mut pause = self.settings.pause;
        let mut tries = 1;
        loop {
            // Files of the node may hang as well.
            let attempt = tokio::time::timeout(self.settings.deadline, self.attempt(call));
            match attempt.await.unwrap_or(Err(Failed::Hung)) {
                Ok(answer) => return Ok(answer),
                Err(Failed::Hung) => return Err(Error::Hung(self.target.clone())),
                Err(Failed::Busy(reason) | Failed::Refused(reason)) if tries == TRIES => {
                    return Err(self.failed(call, reason));
                }
                Err(Failed::Refused(reason)) => return Err(self.failed(call, reason)),
                Err(Failed::Busy(reason)) => {
                    tracing::debug!(
                        store = self.target,
                        step = call.step,
                        reason,
                        tries,
                        "request to a backup target sent again"
                    );
                }
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            tries += 1;
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Option<Answer>, Failed> {
        let connection = self.connection().await?;
        let file = &self.settings.credentials;
        let path = file.clone();
        let credentials = self.read(move || credentials::read(&path)).await;
        let credentials = credentials.map_err(|reason| {
            Failed::Refused(format!("credentials file {}: {reason}", file.display()))
        })?;
        let url = connection.signed(call, &credentials);
        drop(credentials);
        let mut request = match call.method {
            Method::Head => connection.http.head(url),
            Method::Get => connection.http.get(url),
            Method::Post => connection.http.post(url).body(call.body.clone()),
            Method::Put => connection.http.put(url).body(call.body.clone()),
            Method::Delete => connection.http.delete(url),
        };
        if let Some((first, last)) = call.range {
            request = request.header(header::RANGE, format!("bytes={first}-{last}"));
        }
        let response = request.send().await.map_err(Failed::new)?;
        let status = response.status();
        if status.is_success() {
            let headers = response.headers().clone();
            let body = bounded(response, call.most).await?;
            // A server may find out that it fails after it has begun to answer.
            if call.is_document() && answers::Refusal::within(&body) {
                return self.refusal(status, &body);
            }
            return Ok(Some(Answer { headers, body }));
        }
        let body = bounded(response, TEXT).await?;
        self.refusal(status, &body)
    }

    /// What an answer means that is no success.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> Result<Option<Answer>, Failed> {
        let said = answers::Refusal::read(body);
        let bucket = &self.settings.bucket;
        let words = format!("the server answered {} {said}", status.as_u16());
        let refused = |what: String| Err(Failed::Refused(format!("{what}; {words}")));
        match said.code() {
            "NoSuchKey" | "NoSuchUpload" => return Ok(None),
            "NoSuchBucket" => {
                return refused(format!(
                    "bucket {bucket} does not exist: make it, or correct backup.targets"
                ));
            }
            "AccessDenied" if said.message().contains("expired") => return Self::late(&words),
            "AccessDenied" if said.message().contains("not yet valid") => {
                return Self::late(&words);
            }
            "AccessDenied" if said.message().contains("not valid yet") => {
                return Self::late(&words);
            }
            "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" => {
                return refused(format!(
                    "the credentials in {} are refused: correct them, or what they may do in bucket {bucket}",
                    self.settings.credentials.display()
                ));
            }
            "RequestTimeTooSkewed" => return Self::late(&words),
            "SlowDown" | "RequestTimeout" | "InternalError" => return Err(Failed::Busy(words)),
            _ => {}
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Failed::Busy(words));
        }
        if status.is_redirection() {
            return refused("correct the region or the endpoint in backup.targets".to_owned());
        }
        Err(Failed::Refused(words))
    }

    async fn connection(&self) -> Result<&Connection, Failed> {
        let made = self.connection.get_or_try_init(|| async {
            let settings = self.settings.clone();
            self.read(move || Connection::new(&settings)).await
        });
        made.await.map_err(Failed::Refused)
    }

    /// Reads files of the node.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let permit = Arc::clone(&self.files).acquire_owned().await;
        let permit = permit.map_err(|error| error.to_string())?;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read()
        });
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn late(words: &str) -> Result<Option<Answer>, Failed> {
        let what = "correct the clock of the node, or of the server";
        Err(Failed::Refused(format!("{what}; {words}")))
    }

    fn failed(&self, call: &Call<'_>, reason: String) -> Error {
        let object = match call.key {
            "" => format!("bucket {}", self.settings.bucket),
            key => key.to_owned(),
        };
        Error::Bucket {
            target: self.target.clone(),
            step: call.step,
            object,
            reason,
        }
    }
}

impl Connection {
    /// Blocks.
    fn new(settings: &Settings) -> Result<Self, String> {
        // An error means that the program has installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let style = match settings.style {
            Style::Path => UrlStyle::Path,
            Style::Host => UrlStyle::VirtualHost,
        };
        let bucket = settings.bucket.clone();
        let bucket = Bucket::new(
            settings.endpoint.clone(),
            style,
            bucket,
            settings.region.clone(),
        );
        let bucket = bucket.map_err(|e| format!("its URL cannot be used: {e}"))?;
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT)
            .timeout(settings.deadline)
            .referer(false)
            .http1_only()
            .redirect(reqwest::redirect::Policy::none());
        if let Some(file) = &settings.ca {
            let unusable = |e: &dyn std::fmt::Display| {
                format!("certificate authorities in {}: {e}", file.display())
            };
            let pem = std::fs::read(file).map_err(|e| unusable(&e))?;
            let all = Certificate::from_pem_bundle(&pem).map_err(|e| unusable(&e))?;
            builder = builder.tls_certs_only(all);
        }
        let http = builder.build().map_err(|e| crate::one_line(&e))?;
        Ok(Self { http, bucket })
    }

    fn signed(&self, call: &Call<'_>, credentials: &Credentials) -> Url {
        let url = match call.key {
            "" => self.bucket.base_url().clone(),
            key => self.bucket.object_url(key),
        };
        let mut query: Vec<_> = call
            .query
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        query.sort_unstable();
        signing::sign(
            &Timestamp::now(),
            call.method,
            url,
            credentials.key(),
            credentials.secret(),
            credentials.token(),
            self.bucket.region(),
            VALID.as_secs(),
            query.into_iter(),
            std::iter::empty(),
        )
    }
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn etag(&self) -> Option<&str> {
        let tag = self.headers.get(header::ETAG)?.to_str().ok()?;
        Some(tag).filter(|tag| tag.len() <= ETAG)
    }
}

impl Failed {
    fn new(error: reqwest::Error) -> Self {
        // The URL has a signature.
        let error = error.without_url();
        if error.is_timeout() && !error.is_connect() {
            return Self::Hung;
        }
        Self::Busy(crate::one_line(&error))
    }
}

/// Whether a key is the same in a URL, and in the path of a file.
fn is_plain(key: &str) -> bool {
    let mut segments = key.split('/');
    segments.all(|segment| !["", ".", ".."].contains(&segment))
}

/// The first bytes of an answer.
async fn bounded(mut response: Response, most: usize) -> Result<Vec<u8>, Failed> {
    let mut body = Vec::new();
    while body.len() < most {
        let Some(piece) = response.chunk().await.map_err(Failed::new)? else {
            break;
        };
        let rest = most - body.len();
        body.extend_from_slice(&piece[..piece.len().min(rest)]);
    }
    Ok(body)
}
