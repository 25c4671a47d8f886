//! The daemon's client of the tapmanager: one connection per call.
//!
//! Invariant: every call ends by its deadline. A call that ends with [`Error::Deadline`] may still
//! be carried out; all calls may be repeated.
//! Failure: see [`Error`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use fdpass::AsyncConnection;
use serde_json::Error as JsonError;
use tokio::time::Instant;

use crate::wire::{
    AddRequest, Answer, MAX_MESSAGE, Network, PROTOCOL_VERSION, Permit, PodRoute, Reply, Request,
    SandboxCounters, StartRequest, Status, WireError,
};

/// Calls that run plugins get this much more than others, unless set otherwise: a chain of plugins
/// with a minute each, undone once.
const PLUGIN_DEADLINE: Duration = Duration::from_secs(300);

/// How long a call waits for a tapmanager that is being started again, at most; half of its
/// deadline at most, too.
const RECONNECT: Duration = Duration::from_secs(5);
/// Time between two looks for it.
const LOOK: Duration = Duration::from_millis(100);

/// A call that was not answered with what it requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tapmanager does not run, or cannot take another connection.
    #[error("reach the tapmanager at {path}")]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// The reason.
        #[source]
        source: fdpass::Error,
    },
    /// No answer in time.
    #[error("the tapmanager did not answer within {0:?}")]
    Deadline(Duration),
    /// The tapmanager refuses.
    #[error("the tapmanager refused")]
    Refused(#[source] WireError),
    /// The other side does not keep to the protocol, or went away in the middle.
    #[error("the tapmanager broke the protocol: {0}")]
    Protocol(String),
}

/// Where the tapmanager is and how long to wait for it; cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
    plugin_deadline: Duration,
}

impl Client {
    /// A client of the tapmanager that listens on `socket`. `deadline` is for calls that run no
    /// plugins.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, deadline: Duration) -> Self {
        Self {
            socket: socket.into(),
            deadline,
            plugin_deadline: PLUGIN_DEADLINE,
        }
    }

    /// Changes the deadline of [`add`](Self::add), [`del`](Self::del), [`gc`](Self::gc) and
    /// [`status`](Self::status), which run plugins: their number times the CNI timeout, and a
    /// margin.
    #[must_use]
    pub fn with_plugin_deadline(mut self, deadline: Duration) -> Self {
        self.plugin_deadline = deadline;
        self
    }

    /// Where the tapmanager listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes the network of a sandbox, or returns the one that the same request made.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn add(&self, request: AddRequest) -> Result<Network, Error> {
        let request = Request::Add(Box::new(request));
        network(self.call(&request, self.plugin_deadline).await?)
    }

    /// The network of a sandbox.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get(&self, id: &str) -> Result<Network, Error> {
        network(
            self.call(&Request::Get { id: id.to_owned() }, self.deadline)
                .await?,
        )
    }

    /// Whether the network of a sandbox is as it was made.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn check(&self, id: &str) -> Result<(), Error> {
        done(
            self.call(&Request::Check { id: id.to_owned() }, self.deadline)
                .await?,
        )
    }

    /// Takes the network of a sandbox down; success when there is none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn del(&self, id: &str) -> Result<(), Error> {
        done(
            self.call(&Request::Del { id: id.to_owned() }, self.plugin_deadline)
                .await?,
        )
    }

    /// Ids of all sandboxes with a network or a part of one, sorted.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list(&self) -> Result<Vec<String>, Error> {
        ids(self.call(&Request::List {}, self.deadline).await?)
    }

    /// Takes down every network but those of `keep`; returns the ids of what went.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn gc(&self, keep: Vec<String>) -> Result<Vec<String>, Error> {
        ids(self
            .call(&Request::Gc { keep }, self.plugin_deadline)
            .await?)
    }

    /// Whether new networks can be made.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        match self.call(&Request::Status {}, self.plugin_deadline).await? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// The addresses of a guest that the node reaches.
    ///
    /// # Errors
    /// See [`Error`]. An earlier tapmanager refuses the request as [`crate::wire::ErrorCode::Invalid`].
    pub async fn routes(&self, id: &str) -> Result<Vec<PodRoute>, Error> {
        let request = Request::Routes { id: id.to_owned() };
        match self.call(&request, self.deadline).await? {
            Answer::Routes { routes } => Ok(routes),
            other => Err(unexpected(&other)),
        }
    }

    /// Allows one start of the machine of a sandbox; returns what its hand-off needs.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn prepare_start(&self, start: StartRequest) -> Result<Permit, Error> {
        match self
            .call(&Request::PrepareStart(start), self.deadline)
            .await?
        {
            Answer::Token(permit) => Ok(permit),
            other => Err(unexpected(&other)),
        }
    }

    /// Traffic of all guests. Sandboxes that are being worked on are left out.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn counters(&self) -> Result<Vec<SandboxCounters>, Error> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let request = Request::Counters {
                after: after.clone(),
            };
            let (sandboxes, more) = match self.call(&request, self.deadline).await? {
                Answer::Counters { sandboxes, more } => (sandboxes, more),
                other => return Err(unexpected(&other)),
            };
            all.extend(sandboxes);
            match more {
                // A loop without progress would call indefinitely.
                Some(next) if next > after => after = next,
                _ => return Ok(all),
            }
        }
    }

    async fn call(&self, request: &Request, deadline: Duration) -> Result<Answer, Error> {
        let timeout = match request {
            // What is requested is how it is now.
            Request::Status {} | Request::Counters { .. } => Duration::ZERO,
            _ => RECONNECT.min(deadline / 2),
        };
        tokio::time::timeout(deadline, self.exchange(request, timeout))
            .await
            .map_err(|_| Error::Deadline(deadline))?
    }

    /// A connection, once something listens; an error when nothing does for so long.
    async fn connect(&self, timeout: Duration) -> Result<AsyncConnection, Error> {
        let until = Instant::now() + timeout;
        loop {
            match AsyncConnection::connect(&self.socket) {
                Ok(connection) => return Ok(connection),
                Err(error) if error.is_without_listener() && Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(source) => {
                    let path = self.socket.clone();
                    return Err(Error::Unreachable { path, source });
                }
            }
        }
    }

    async fn exchange(&self, request: &Request, timeout: Duration) -> Result<Answer, Error> {
        let connection = self.connect(timeout).await?;
        match round_trip(
            &connection,
            &Request::Hello {
                version: PROTOCOL_VERSION,
            },
        )
        .await?
        {
            Answer::Hello {
                version: PROTOCOL_VERSION,
                ..
            } => {}
            other => return Err(unexpected(&other)),
        }
        round_trip(&connection, request).await
    }
}

async fn round_trip(connection: &AsyncConnection, request: &Request) -> Result<Answer, Error> {
    let broken = |error: fdpass::Error| Error::Protocol(error.to_string());
    let unreadable = |error: JsonError| Error::Protocol(error.to_string());
    let bytes = serde_json::to_vec(request).map_err(unreadable)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(Error::Protocol(format!(
            "a request of {} bytes is too long",
            bytes.len()
        )));
    }
    connection.send(&bytes, &[]).await.map_err(broken)?;
    let message = connection.recv(MAX_MESSAGE).await.map_err(broken)?;
    let message = message.ok_or_else(|| Error::Protocol("it closed the connection".to_owned()))?;
    match serde_json::from_slice(&message.bytes).map_err(unreadable)? {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(error) => Err(Error::Refused(error)),
    }
}

fn network(answer: Answer) -> Result<Network, Error> {
    match answer {
        Answer::Network(network) => Ok(*network),
        other => Err(unexpected(&other)),
    }
}

fn ids(answer: Answer) -> Result<Vec<String>, Error> {
    match answer {
        Answer::Ids { ids } => Ok(ids),
        other => Err(unexpected(&other)),
    }
}

fn done(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> Error {
    let kind = match answer {
        Answer::Hello { .. } => "hello",
        Answer::Network(_) => "network",
        Answer::Ids { .. } => "ids",
        Answer::Status(_) => "status",
        Answer::Routes { .. } => "routes",
        Answer::Token(_) => "token",
        Answer::Counters { .. } => "counters",
        Answer::Done => "done",
    };
    Error::Protocol(format!("unexpected answer {kind}"))
}

#[cfg(test)]
mod tests;
