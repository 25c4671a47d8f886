//! The HTTP server for `/metrics` on a loopback address.
//!
//! Invariant: it serves one page and reads no bodies; a slow reader costs one task until a
//! deadline.
//! Failure: that of [`service::admin_http`]: the address cannot be had; a later error ends a single
//! connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use service::admin_http::{Error, Limits, Page, Server};
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// Collectors are few.
const LIMITS: Limits = Limits {
    connections: 8,
    head: Duration::from_secs(10),
    life: Duration::from_secs(10),
};

/// Binds `address` and gives the future that serves it until `stop`.
pub(crate) async fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = Server::bind(address).await?;
    let page = move |path: &str| (path == "/metrics").then(|| Page::metrics(metrics.text()));
    Ok(server.serve(LIMITS, stop, page))
}
