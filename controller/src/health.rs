//! `/healthz`, `/readyz` and `/metrics` over HTTP.
//!
//! Invariant: health says that the process serves and nothing about the cluster: a controller that waits for the
//! lease, or for an API server that is away, is healthy.
//! Failure: [`Error`] when the address cannot be used; a client that is slow or sends nonsense loses its connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::metrics::Metrics;

/// Connections at a time; those of collectors and probes are few.
const CONNECTIONS: usize = 32;
/// Longest time for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Longest life of a connection.
const CONNECTION: Duration = Duration::from_secs(60);

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct Error {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Listens; the returned future serves for ever.
///
/// # Errors
///
/// [`Error`] when the address cannot be used.
pub async fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
) -> Result<impl Future<Output = Infallible>, Error> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error { address, source })?;
    Ok(accept(listener, metrics))
}

async fn accept(listener: TcpListener, metrics: Arc<Metrics>) -> Infallible {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed.
        let slot = Arc::clone(&slots).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: some will come back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(request.method(), request.uri().path(), &metrics);
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let serving = server.serve_connection(TokioIo::new(stream), service);
            // How a client ends its connection is its own business.
            let _ = timeout(CONNECTION, serving).await;
        });
    }
}

fn answer(method: &Method, path: &str, metrics: &Metrics) -> Response<Full<Bytes>> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let (code, kind, text) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/healthz" | "/livez" | "/readyz") => {
            (StatusCode::OK, PLAIN, "ok\n".to_owned())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, METRICS, metrics.text()),
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, PLAIN, "not found\n".to_owned())
        }
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            PLAIN,
            "only GET\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = code;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        timeout(HEAD, reading).await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn a_process_that_waits_for_the_lease_is_healthy_and_says_so_in_its_metrics() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::default());
        let server = tokio::spawn(accept(listener, metrics));
        for path in ["/healthz", "/readyz"] {
            assert!(get(address, path).await.starts_with("HTTP/1.0 200"));
        }
        let metrics = get(address, "/metrics").await;
        assert!(
            metrics.contains("\nvmlet_controller_leader 0\n"),
            "{metrics}"
        );
        assert!(get(address, "/secrets").await.starts_with("HTTP/1.0 404"));
        server.abort();
    }
}
