//! The server of a program that has metrics alone.
//!
//! Invariant: it serves one page and reads no bodies; a slow reader costs one task until a
//! deadline.
//! Failure: that of [`Server`]: the address cannot be had; a later error ends a single connection.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Endpoint, Error, Limits, Page, Server};

/// Collectors are few.
const LIMITS: Limits = Limits {
    connections: 8,
    head: Duration::from_secs(10),
    life: Duration::from_secs(10),
};

/// A server for `/metrics` that listens and does not answer yet.
#[derive(Debug)]
pub struct MetricsServer {
    server: Server,
    /// Where it listens: an address with the port that it got, or a path.
    pub address: String,
}

impl MetricsServer {
    /// Listens where a setting specifies it.
    ///
    /// # Errors
    ///
    /// [`Error`] when the address or the path cannot be used.
    pub async fn listen(endpoint: &Endpoint) -> Result<Self, Error> {
        let server = Server::listen(endpoint).await?;
        let address = server.address();
        let address = address.map_or_else(|| endpoint.to_string(), |address| address.to_string());
        Ok(Self { server, address })
    }

    /// Answers with OpenMetrics `text`, which is made for each scrape, until `stop`.
    pub async fn serve(
        self,
        stop: CancellationToken,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) {
        let page = move |path: &str| (path == "/metrics").then(|| Page::metrics(text()));
        self.server.serve(LIMITS, stop, page).await;
    }
}
