//! `/healthz`, `/readyz` and `/metrics` over HTTP.
//!
//! Invariant: health shows that the process serves and nothing about the cluster: a controller that
//! waits for the lease, or for an API server that is away, is healthy.
//! Failure: that of [`service::admin_http`]: the address cannot be used; a client that is slow
//! loses its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
/// [`Error`] when the address cannot be used.
pub async fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
) -> Result<impl Future<Output = ()>, Error> {
    let server = Server::bind(address).await?;
    let address = server.address().unwrap_or(address);
    tracing::info!(%address, "health server started");
    let page = move |path: &str| page(path, &metrics);
    Ok(server.serve(LIMITS, CancellationToken::new(), page))
}

fn page(path: &str, metrics: &Metrics) -> Option<Page> {
    match path {
        "/healthz" | "/livez" | "/readyz" => Some(Page::ok()),
        "/metrics" => Some(Page::metrics(metrics.text())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_healthy_and_its_metrics_show_the_role() {
        let metrics = Metrics::default();
        for path in ["/healthz", "/livez", "/readyz"] {
            assert_eq!(page(path, &metrics), Some(Page::ok()));
        }
        let text = metrics.text();
        assert!(text.contains("\nvmlet_controller_leader 0\n"), "{text}");
        assert_eq!(page("/metrics", &metrics), Some(Page::metrics(text)));
        assert_eq!(page("/secrets", &metrics), None);
    }
}
