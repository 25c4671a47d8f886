//! `/healthz` and `/readyz` over HTTP, and `/metrics` on a listener of its own.
//!
//! Invariant: health shows that the process serves and nothing about the cluster: a controller that
//! waits for the lease, or for an API server that is away, is healthy. One that holds the lease is
//! not ready before its stores are filled: until then it does nothing for any machine. Readers of
//! metrics take no place of a probe.
//! Failure: that of [`service::admin_http`]: an address cannot be used; a client that is slow
//! loses its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use service::admin_http::{Error, Limits, Page, Server};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Collectors and probes are few.
const LIMITS: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(5),
    life: Duration::from_secs(60),
};

/// Listens, and logs where: the kernel chooses port 0. The returned future serves until it is
/// dropped.
///
/// # Errors
///
/// [`Error`] when an address cannot be used.
pub async fn serve(
    probes: SocketAddr,
    metrics: SocketAddr,
    content: Arc<Metrics>,
) -> Result<impl Future<Output = ()>, Error> {
    let probed = Server::bind(probes).await?;
    let scraped = Server::bind(metrics).await?;
    let address = scraped.address().unwrap_or(metrics);
    tracing::info!(%address, "metrics server started");
    let address = probed.address().unwrap_or(probes);
    tracing::info!(%address, "health server started");
    let probe = Arc::clone(&content);
    let page = move |path: &str| (path == "/metrics").then(|| Page::metrics(content.text()));
    let scraped = scraped.serve(LIMITS, CancellationToken::new(), page);
    let health = move |path: &str| health(path, probe.is_filling());
    let probed = probed.serve(LIMITS, CancellationToken::new(), health);
    Ok(async {
        tokio::join!(probed, scraped);
    })
}

fn health(path: &str, is_filling: bool) -> Option<Page> {
    match path {
        "/readyz" if is_filling => {
            let text =
                "waits for the first list of each watched kind; the log names those that fail\n";
            Some(Page::plain(StatusCode::SERVICE_UNAVAILABLE, text))
        }
        "/healthz" | "/livez" | "/readyz" => Some(Page::ok()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn a_follower_is_healthy() {
        for path in ["/healthz", "/livez", "/readyz"] {
            assert_eq!(health(path, false), Some(Page::ok()));
        }
        for path in ["/metrics", "/secrets", "/"] {
            assert_eq!(health(path, false), None);
        }
    }

    #[test]
    fn a_leader_is_ready_when_its_stores_are_filled() {
        let metrics = Metrics::default();
        assert!(!metrics.is_filling(), "a follower lists nothing");
        metrics.leader.set(1);
        assert!(metrics.is_filling());
        for path in ["/healthz", "/livez"] {
            assert_eq!(health(path, true), Some(Page::ok()));
        }
        assert_ne!(health("/readyz", true), Some(Page::ok()));
        metrics.stores_filled.set(1);
        assert!(!metrics.is_filling());
    }

    #[tokio::test]
    async fn metrics_show_the_role() {
        let text = Metrics::default().text();
        assert!(text.contains("\nvmlet_controller_leader 0\n"), "{text}");
        let taken = Server::bind(ANY).await.unwrap();
        let address = taken.address().unwrap();
        assert!(serve(ANY, address, Arc::default()).await.is_err());
        assert!(serve(address, ANY, Arc::default()).await.is_err());
        let mut stream = TcpStream::connect(address).await.unwrap();
        let health = |path: &str| health(path, false);
        let serving = taken.serve(LIMITS, CancellationToken::new(), health);
        let asked = async {
            let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::select! {
            () = serving => String::new(),
            answer = asked => answer,
        };
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
}
