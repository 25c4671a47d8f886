//! One HTTP/2 connection to a Unix socket, which reconnects when it breaks.
//!
//! Invariant: at most one connection, and one attempt at a time of all links to one socket; after a
//! failure the next attempts wait longer, up to a second, and calls in between fail at once.
//! Failure: a short text with the reason why there is no connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use service::backoff::Backoff;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::socket::{Driving, Socket};
use crate::wire::Body;

/// Wait after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// Longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Window of a stream: a whole message.
pub(crate) const STREAM_WINDOW: u32 = 16 * 1024 * 1024 + 64 * 1024;

/// Window of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;

/// Largest frame that we take: fewer wake-ups for long lists.
pub(crate) const FRAME: u32 = 256 * 1024;

/// Longest headers, as Go's client and server take.
pub(crate) const HEADERS: u32 = 1024 * 1024;

/// Calls given up that the connection keeps in mind, for answers that are still on their way.
pub(crate) const RESETS: usize = 4096;

/// A connection that is there when it can be.
#[derive(Debug)]
pub(crate) struct Link {
    socket: PathBuf,
    timeout: Duration,
    current: Arc<Mutex<Current>>,
    /// Shared by all links to this socket: once one connects, the others may.
    attempt: Arc<tokio::sync::Mutex<Attempt>>,
    up: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Default)]
struct Current {
    sender: Option<SendRequest<Body>>,
    generation: u64,
}

/// When the next attempt may be made, and why the last one failed.
#[derive(Debug)]
struct Attempt {
    backoff: Backoff,
    why: String,
}

impl Link {
    pub(crate) fn new(socket: &Path, timeout: Duration) -> Self {
        Self {
            socket: socket.into(),
            timeout,
            current: Arc::default(),
            attempt: Arc::new(tokio::sync::Mutex::new(Attempt {
                backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
                why: String::new(),
            })),
            up: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Another connection to the same socket, made when it is needed.
    pub(crate) fn beside(&self) -> Self {
        Self {
            socket: self.socket.clone(),
            timeout: self.timeout,
            current: Arc::default(),
            attempt: Arc::clone(&self.attempt),
            up: Arc::new(watch::Sender::new(false)),
        }
    }

    /// The connection and its number; connects when there is none and the time for it has come.
    pub(crate) async fn get(&self) -> Result<(SendRequest<Body>, u64), String> {
        if let Some(found) = self.alive() {
            return Ok(found);
        }
        let mut attempt = self.attempt.lock().await;
        if let Some(found) = self.alive() {
            return Ok(found);
        }
        if attempt.backoff.not_before(Instant::now()).is_some() {
            return Err(attempt.why.clone());
        }
        match self.connect().await {
            Ok(found) => {
                attempt.backoff.reset();
                Ok(found)
            }
            Err(why) => {
                attempt.backoff.failed(Instant::now());
                attempt.why.clone_from(&why);
                Err(why)
            }
        }
    }

    /// Waits until the connection with this number has ended.
    pub(crate) async fn ended(&self, generation: u64) {
        let mut up = self.up.subscribe();
        while self.generation() == Some(generation) {
            if up.changed().await.is_err() {
                return;
            }
        }
    }

    /// The number of the connection, if there is one.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.alive().map(|(_, generation)| generation)
    }

    /// Whether there is a connection, and when that changes.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.up.subscribe()
    }

    /// The connection with this number cannot be used.
    pub(crate) fn discard(&self, generation: u64) {
        drop_sender(&self.current, &self.up, generation);
    }

    fn alive(&self) -> Option<(SendRequest<Body>, u64)> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = current.sender.as_ref().filter(|s| !s.is_closed())?;
        Some((sender.clone(), current.generation))
    }

    async fn connect(&self) -> Result<(SendRequest<Body>, u64), String> {
        let handshake = async {
            let stream = UnixStream::connect(&self.socket).await;
            let stream = stream.map_err(|e| format!("connect {}: {e}", self.socket.display()))?;
            let socket = Socket::new(stream).map_err(|e| format!("watch the connection: {e}"))?;
            let mut builder = Builder::new(Driving(socket.outgoing()));
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(FRAME)
                .max_header_list_size(HEADERS)
                // Calls that were given up are daily business, also many at once.
                .max_concurrent_reset_streams(RESETS)
                .max_local_error_reset_streams(None);
            let made = builder.handshake::<_, Body>(TokioIo::new(socket)).await;
            made.map_err(|e| format!("begin HTTP/2 on {}: {e}", self.socket.display()))
        };
        let made = tokio::time::timeout(self.timeout, handshake).await;
        let (sender, connection) =
            made.map_err(|_| format!("no connection within {:?}", self.timeout))??;
        let generation = {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            current.generation += 1;
            current.sender = Some(sender.clone());
            current.generation
        };
        self.up.send_replace(true);
        let current = Arc::clone(&self.current);
        let up = Arc::clone(&self.up);
        let socket = self.socket.clone();
        tokio::spawn(async move {
            let ended = connection.await;
            let reason = ended.err().map(|e| e.to_string());
            tracing::debug!(socket = %socket.display(), reason, "runtime connection ended");
            drop_sender(&current, &up, generation);
        });
        Ok((sender, generation))
    }
}

fn drop_sender(current: &Mutex<Current>, up: &watch::Sender<bool>, generation: u64) {
    let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
    if current.generation == generation && current.sender.take().is_some() {
        up.send_replace(false);
    }
}
