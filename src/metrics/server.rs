//! What `/metrics` serves.
//!
//! Invariant: a scrape asks neither libvirt nor the database.
//! Failure: that of [`MetricsServer`].

use service::admin_http::{Endpoint, Error, MetricsServer};
use tokio_util::sync::CancellationToken;

use super::Census;
use crate::app::App;
use crate::vm;

/// Binds `endpoint` and gives the future that serves it until `stop`.
pub(crate) async fn serve(
    endpoint: &Endpoint,
    app: App,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    let server = MetricsServer::listen(endpoint).await?;
    tracing::info!(address = server.address, "metrics server started");
    let text = move || app.containers.metrics().text(&census(&app));
    Ok(server.serve(stop, text))
}

fn census(app: &App) -> Census {
    let sandboxes = app.sandboxes.list();
    let machines = app.containers.machines();
    let sandboxes = sandboxes.iter().map(|row| format!("{:?}", row.phase));
    let machines = machines.iter();
    let machines = machines.map(|row| format!("{:?}", row.phase));
    Census {
        sandboxes: sandboxes.collect(),
        machines: machines.collect(),
        tasks: app.open_tasks(),
        connected: app.is_connected(),
        unreadable: app.unreadable(),
        landlock: vm::landlock_version(),
    }
}
