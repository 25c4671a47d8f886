//! The health of the agent, and the HTTP servers that report it and its metrics.
//!
//! Invariant: `/healthz` is 200 while the process serves; `/readyz` is 200 while the tasks were
//! listed, the API server's watch works and the daemon has listed its tasks. A slow reader costs
//! one task until a deadline; readers of metrics take no place of a probe.
//! Failure: [`Error`] when the address cannot be had; a later error ends a single connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use service::admin_http::{Error, Limits, Page, Server, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Collectors and probes are few.
const LIMITS: Limits = Limits {
    connections: 8,
    head: Duration::from_secs(10),
    life: Duration::from_secs(10),
};

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

    /// Whether the daemon has listed its tasks.
    pub(crate) fn daemon(&self, notified: bool) {
        self.daemon.store(notified, Ordering::Relaxed);
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

/// Binds `address` and gives the future that serves health until `stop`.
pub(crate) async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = Server::bind(address).await?;
    let page = move |path: &str| page(path, &health);
    Ok(server.serve(LIMITS, stop, page))
}

/// The same for metrics.
pub(crate) async fn serve_metrics(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = Server::bind(address).await?;
    let page = move |path: &str| (path == "/metrics").then(|| Page::metrics(metrics.text()));
    Ok(server.serve(LIMITS, stop, page))
}

fn page(path: &str, health: &Health) -> Option<Page> {
    match path {
        "/healthz" => Some(Page::ok()),
        "/readyz" => Some(health.trouble().map_or_else(Page::ok, |trouble| {
            Page::plain(StatusCode::SERVICE_UNAVAILABLE, trouble)
        })),
        _ => None,
    }
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
        assert_eq!(page("/readyz", &health), Some(Page::ok()));
        assert_eq!(page("/metrics", &health), None);
    }
}
