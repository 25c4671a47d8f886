//! The node API: the gRPC service for the agent.
//!
//! Invariant: generated types stay in here; a task is recorded before its first effect, and runs at
//! most once for its uid, however often the daemon ends meanwhile. No peer but our own user is
//! served.
//! Failure: [`Error`] when the socket cannot be had; a task that fails reports it in its status.

use std::future::Future;
use std::sync::Arc;

use nodeapi::v1::node_server::NodeServer;
use service::listener;
use service::listener::Listener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

mod agenda;
mod backups;
mod describe;
mod exports;
pub(crate) mod facts;
mod machines;
mod probes;
mod run;
mod server;
mod task;
mod turns;
mod uploads;
mod watch;
mod wire;

pub use agenda::{Agenda, Limits, Refused};
pub use exports::Exports;
pub use machines::Machines;
pub use probes::Probes;
pub use task::{Backup, DoneBackup, Failure, Progress, State, StoredBackup, Task, TaskUid, Work};

use crate::config::Config;
use crate::disk::Disks;
use crate::health::Health;
use crate::images::Images;
use crate::node_settings::NodeSettings;
use crate::platform::Platform;
use crate::vm::Containers;
use server::Service;

/// Largest message either way: lists of some thousand machines.
const MAX_MESSAGE: usize = 16 << 20;

/// Requests of one connection that are worked on at the same time.
const STREAMS_PER_CONNECTION: u32 = 64;

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be had.
    #[error("listen on the socket of the node API")]
    Listen(#[from] listener::Error),
    /// The transport failed.
    #[error("serve the node API")]
    Serve(#[source] tonic::transport::Error),
}

/// What names this daemon.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Constant for the life of the state directory.
    pub installation: String,
    /// Which boot of the node this is; empty when the node does not say.
    pub boot: String,
}

/// What the calls of the node API use.
#[derive(Debug)]
pub struct Services<P: Platform> {
    /// Distinguishes this daemon from others, and this boot from the one before.
    pub identity: Identity,
    /// Tasks.
    pub agenda: Arc<Agenda<P>>,
    /// What is known of machines that run.
    pub machines: Arc<Machines<P>>,
    /// Readiness probes of machines.
    pub probes: Arc<Probes<P>>,
    /// Containers.
    pub containers: Arc<Containers<P>>,
    /// Disks that outlive pods.
    pub disks: Arc<Disks>,
    /// Copies of disks for clients.
    pub exports: Exports,
    /// Those of the cluster.
    pub settings: Arc<NodeSettings>,
    /// Images.
    pub images: Arc<Images>,
    /// The state of the helpers.
    pub health: Arc<Health<P>>,
}

/// Serves until `stop` is done, then gives requests in progress the configured time to end.
pub async fn serve<P: Platform>(
    services: Services<P>,
    config: &Config,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let listener = Listener::bind_for(&config.node.endpoint, config.node.agent_uid).await?;
    tracing::info!(socket = %config.node.endpoint, "node API server started");
    let stopping = CancellationToken::new();
    let service = NodeServer::new(Service::new(services, config, stopping.clone()))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let socket = listener.claim();
    let server = Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .add_service(service)
        .serve_with_incoming_shutdown(listener.incoming(), stopping.clone().cancelled_owned());
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return ended.map_err(Error::Serve),
        () = stop => stopping.cancel(),
    }
    let grace = config.shutdown.timeout.get();
    let ended = tokio::time::timeout(grace, server).await;
    socket.release();
    ended.unwrap_or(Ok(())).map_err(Error::Serve)
}

#[cfg(test)]
mod tests;
