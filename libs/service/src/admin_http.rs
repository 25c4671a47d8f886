//! A few pages over HTTP, answered from memory: health and metrics of a program.
//!
//! Invariant: bodies of requests are not read, and a connection carries one request; a slow reader
//! costs one task until a deadline, and no more than [`Limits::connections`] of them. No client can
//! keep others out: a new one takes the place of the oldest of the address that has most.
//! Failure: [`Error`] when the address cannot be had; a later error ends a single connection.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;

mod endpoint;
mod metrics;
mod places;

pub use endpoint::Endpoint;
pub use http::StatusCode;
pub use metrics::MetricsServer;
pub use places::Places;

use crate::listener::{self, Claim, Listener};

/// Wait after a failure to accept: without descriptors, some will return.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the network.
    #[error("listen on {address}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// Of the file system.
    #[error("listen on the socket of the metrics")]
    Unix(#[from] listener::Error),
}

/// What readers may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; another one ends the oldest of them.
    pub connections: usize,
    /// Longest time for the head of a request.
    pub head: Duration,
    /// Longest life of a connection.
    pub life: Duration,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    status: StatusCode,
    form: &'static str,
    body: String,
}

impl Page {
    /// A line of text.
    pub fn plain(status: StatusCode, body: impl Into<String>) -> Self {
        Self {
            status,
            form: PLAIN,
            body: body.into(),
        }
    }

    /// That all is well.
    #[must_use]
    pub fn ok() -> Self {
        Self::plain(StatusCode::OK, "ok\n")
    }

    /// Metrics in the OpenMetrics text format.
    #[must_use]
    pub const fn metrics(body: String) -> Self {
        Self {
            status: StatusCode::OK,
            form: OPEN_METRICS,
            body,
        }
    }
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Server {
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(Listener),
}

/// A client.
enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Client {
    /// Where it is; `None`: on the node.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl Socket {
    async fn accept(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| Client::Tcp(stream)),
            Self::Unix(listener) => Ok(Client::Unix(listener.accept().await)),
        }
    }

    fn claim(&self) -> Option<Claim> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(listener) => Some(listener.claim()),
        }
    }
}

impl Server {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// [`Error`] when the address cannot be used.
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|source| Error::Tcp { address, source })?;
        let socket = Socket::Tcp(listener);
        Ok(Self { socket })
    }

    /// Listens where a setting specifies it.
    ///
    /// # Errors
    ///
    /// [`Error`] when the address or the path cannot be used.
    pub async fn listen(endpoint: &Endpoint) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Tcp(address) => Self::bind(*address).await,
            Endpoint::Unix(path) => {
                let socket = Socket::Unix(Listener::bind(path).await?);
                Ok(Self { socket })
            }
        }
    }

    /// Where it listens; `None` on a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Answers GET and HEAD with what `page` has for a path, until `stop`.
    pub async fn serve(
        self,
        limits: Limits,
        stop: CancellationToken,
        page: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
    ) {
        let mut places = Places::new(limits.connections);
        let page = Arc::new(page);
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.socket.accept() => accepted,
            };
            let Ok(client) = accepted else {
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            };
            let page = Arc::clone(&page);
            places.make_room();
            let address = client.address();
            let task = tokio::spawn(async move {
                match client {
                    Client::Tcp(stream) => converse(stream, limits, &*page).await,
                    Client::Unix(stream) => converse(stream, limits, &*page).await,
                }
            });
            places.take(address, task.abort_handle());
            // In a flood each connection gets its turn before it loses its place.
            tokio::task::yield_now().await;
        }
        if let Some(name) = self.socket.claim() {
            name.release();
        }
    }
}

/// One connection. A reader that disconnects or is too slow is not logged.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    limits: Limits,
    page: &impl Fn(&str) -> Option<Page>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), page);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(limits.life, connection).await;
}

fn answer(
    method: &Method,
    path: &str,
    page: impl Fn(&str) -> Option<Page>,
) -> Response<Full<Bytes>> {
    let page = if matches!(*method, Method::GET | Method::HEAD) {
        page(path).unwrap_or_else(|| Page::plain(StatusCode::NOT_FOUND, "not found\n"))
    } else {
        Page::plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n")
    };
    let mut response = Response::new(Full::from(page.body));
    *response.status_mut() = page.status;
    let form = HeaderValue::from_static(page.form);
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}

#[cfg(test)]
mod tests;
