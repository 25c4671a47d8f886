//! Requests to a server that speaks S3, for one bucket.
//!
//! Invariant: each request has a deadline and is sent again a few times, so it can be repeated; an answer is read up to a
//! bound. Credentials are read for each request, from a file that only its owner reads: they are in no log, no error and no
//! other memory. No redirect is followed: a signature is for one server.
//! Failure: [`Error::Bucket`] with the words of the server, or [`Error::Hung`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tokio::sync::{OnceCell, Semaphore};

mod answers;
mod attempt;
mod call;
mod connection;
mod credentials;
mod objects;
mod upload;

pub(super) use upload::blocking;

use super::error::{Error, Result};
use call::Call;
use connection::Connection;

/// What parts in memory may have together, in MiB.
const MEMORY: usize = 128;

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
}
