//! The HTTP server for `/metrics`.
//!
//! Invariant: it serves one page and reads no bodies; a slow reader costs one task until a
//! deadline.
//! Failure: that of [`service::admin_http`]: the address cannot be had; a later error ends a single
//! connection.

use std::time::Duration;

use service::admin_http::{Endpoint, Error, Limits, Page, Server};
use tokio_util::sync::CancellationToken;

use super::Shared;

/// Collectors are few.
const LIMITS: Limits = Limits {
    connections: 8,
    head: Duration::from_secs(10),
    life: Duration::from_secs(10),
};

/// Binds `endpoint` and gives the future that serves it until `stop`. `sandboxes` counts them.
pub(crate) async fn serve(
    endpoint: &Endpoint,
    metrics: Shared,
    sandboxes: impl Fn() -> usize + Send + Sync + 'static,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = Server::listen(endpoint).await?;
    let address = server.address();
    let address = address.map_or_else(|| endpoint.to_string(), |address| address.to_string());
    tracing::info!(address, "metrics server started");
    let page =
        move |path: &str| (path == "/metrics").then(|| Page::metrics(metrics.text(sandboxes())));
    Ok(server.serve(LIMITS, stop, page))
}
