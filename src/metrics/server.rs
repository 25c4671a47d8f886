//! The HTTP server for `/metrics`.
//!
//! Invariant: it serves one page and reads no bodies; a slow reader costs one task until a
//! deadline. A scrape asks neither libvirt nor the database.
//! Failure: that of [`service::admin_http`]: the address cannot be had; a later error ends a single
//! connection.

use std::time::Duration;

use service::admin_http::{Endpoint, Error, Limits, Page, Server};
use tokio_util::sync::CancellationToken;

use super::Census;
use crate::app::App;

/// Collectors are few.
const LIMITS: Limits = Limits {
    connections: 8,
    head: Duration::from_secs(10),
    life: Duration::from_secs(10),
};

/// Binds `endpoint` and gives the future that serves it until `stop`.
pub(crate) async fn serve(
    endpoint: &Endpoint,
    app: App,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = Server::listen(endpoint).await?;
    let address = server.address();
    let address = address.map_or_else(|| endpoint.to_string(), |address| address.to_string());
    tracing::info!(address, "metrics server started");
    let page = move |path: &str| {
        let text = || app.containers.metrics().text(&census(&app));
        (path == "/metrics").then(|| Page::metrics(text()))
    };
    Ok(server.serve(LIMITS, stop, page))
}

fn census(app: &App) -> Census {
    let (sandboxes, machines) = (app.sandboxes.list(), app.containers.machines());
    let sandboxes = sandboxes.iter().map(|row| format!("{:?}", row.phase));
    let machines = machines.iter();
    let machines = machines.map(|row| format!("{:?}", row.phase));
    Census {
        sandboxes: sandboxes.collect(),
        machines: machines.collect(),
        tasks: app.open_tasks(),
        connected: app.is_connected(),
    }
}
