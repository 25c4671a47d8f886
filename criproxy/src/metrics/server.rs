//! The HTTP server for `/metrics` on a loopback address.
//!
//! Invariant: it serves one page and reads no bodies; a slow reader costs one task until a deadline.
//! Failure: [`Error`] when the address cannot be had; later trouble ends single connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(10);

/// Connections at the same time; others wait.
const CONNECTIONS: usize = 8;

/// Wait after a failure to accept.
const BREATH: Duration = Duration::from_millis(100);

/// No server for metrics.
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
            let metrics = Arc::clone(&metrics);
            tokio::spawn(async move {
                let service = service_fn(|request| std::future::ready(answer(&request, &metrics)));
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
    metrics: &Metrics,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let found = request.method() == Method::GET && request.uri().path() == "/metrics";
    let mut response = Response::new(Full::default());
    if found {
        let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let form = http::HeaderValue::from_static(form);
        response.headers_mut().insert(CONTENT_TYPE, form);
        *response.body_mut() = Full::from(metrics.text());
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}
