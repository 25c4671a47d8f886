//! A few pages over HTTP, answered from memory: health and metrics of a program.
//!
//! Invariant: bodies of requests are not read, and a connection carries one request; a slow reader
//! costs one task until a deadline, and no more than [`Limits::connections`] of them.
//! Failure: [`Error`] when the address cannot be had; a later error ends a single connection.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use http::StatusCode;

/// Wait after a failure to accept: without descriptors, some will return.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct Error {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// What readers may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; others wait.
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
    listener: TcpListener,
}

impl Server {
    /// Listens on `address`.
    ///
    /// # Errors
    ///
    /// [`Error`] when the address cannot be used.
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|source| Error { address, source })?;
        Ok(Self { listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers GET and HEAD with what `page` has for a path, until `stop`.
    pub async fn serve(
        self,
        limits: Limits,
        stop: CancellationToken,
        page: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
    ) {
        let room = Arc::new(Semaphore::new(limits.connections));
        let page = Arc::new(page);
        loop {
            let next = async {
                // The semaphore is never closed.
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = stop.cancelled() => return,
                next = next => next,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            };
            let page = Arc::clone(&page);
            tokio::spawn(async move {
                converse(stream, limits, &*page).await;
                drop(permit);
            });
        }
    }
}

/// One connection. A reader that disconnects or is too slow is not logged.
async fn converse(stream: TcpStream, limits: Limits, page: &impl Fn(&str) -> Option<Page>) {
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
