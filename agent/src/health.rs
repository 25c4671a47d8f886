//! Whether the agent works, and the HTTP server that says so.
//!
//! Invariant: `/healthz` is 200 while the process serves; `/readyz` is 200 while the tasks were listed, the API
//! server's watch works and the daemon has told of its tasks. A slow reader costs one task until a deadline.
//! Failure: [`Error`] when the address cannot be had; later trouble ends single connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(10);
/// Connections at the same time; others wait.
const CONNECTIONS: usize = 8;
/// Wait after a failure to accept.
const BREATH: Duration = Duration::from_millis(100);

/// What the parts of the agent say of themselves.
#[derive(Debug, Default)]
pub(crate) struct Health {
    listed: AtomicBool,
    api: AtomicBool,
    daemon: AtomicBool,
}

impl Health {
    /// The tasks of this node were listed once.
    pub(crate) fn listed(&self) {
        self.listed.store(true, Ordering::Relaxed);
    }

    /// Whether the watch of tasks works.
    pub(crate) fn api(&self, works: bool) {
        self.api.store(works, Ordering::Relaxed);
    }

    /// Whether the daemon has told of its tasks.
    pub(crate) fn daemon(&self, told: bool) {
        self.daemon.store(told, Ordering::Relaxed);
    }

    /// Why the agent cannot do its work now.
    fn trouble(&self) -> Option<&'static str> {
        if !self.listed.load(Ordering::Relaxed) {
            Some("the tasks of this node have not been listed yet\n")
        } else if !self.api.load(Ordering::Relaxed) {
            Some("the API server does not answer\n")
        } else if !self.daemon.load(Ordering::Relaxed) {
            Some("the daemon does not answer\n")
        } else {
            None
        }
    }
}

/// No server.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct Error {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Binds `address` and gives the future that serves it until `stop`.
pub(crate) async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|source| Error { address, source })?;
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    Ok(async move {
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            let (health, metrics) = (Arc::clone(&health), Arc::clone(&metrics));
            tokio::spawn(async move {
                let service =
                    service_fn(|request| std::future::ready(answer(&request, &health, &metrics)));
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service);
                // A reader that goes away or is too slow is no news.
                let _ = tokio::time::timeout(LIFE, connection).await;
                drop(permit);
            });
        }
    })
}

fn answer(
    request: &Request<Incoming>,
    health: &Health,
    metrics: &Metrics,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let (status, form, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => (StatusCode::OK, plain, "ok\n".into()),
        (&Method::GET, "/readyz") => match health.trouble() {
            None => (StatusCode::OK, plain, "ok\n".into()),
            Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, plain, trouble.into()),
        },
        (&Method::GET, "/metrics") => {
            let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (
                StatusCode::OK,
                HeaderValue::from_static(form),
                metrics.text(),
            )
        }
        _ => (StatusCode::NOT_FOUND, plain, String::new()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, form);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_when_both_sides_answer() {
        let health = Health::default();
        assert!(health.trouble().unwrap().contains("listed"));
        health.listed();
        assert!(health.trouble().unwrap().contains("API server"));
        health.api(true);
        assert!(health.trouble().unwrap().contains("daemon"));
        health.daemon(true);
        assert_eq!(health.trouble(), None);
    }
}
