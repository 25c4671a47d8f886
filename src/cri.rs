//! The CRI server for kubelet and crictl.
//!
//! Invariant: generated types stay in here; a method decodes, calls a service and encodes. No peer
//! but our own user is served, and nothing that a peer sends ends the server.
//! Failure: [`Error`] when the socket cannot be had; a failed request gets a gRPC status from
//! [`status`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cri_proto::MAX_MESSAGE;
use cri_proto::v1::image_service_server::{ImageService, ImageServiceServer};
use cri_proto::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use service::listener::Listener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

mod calls;
mod convert;
mod filter;
pub(crate) mod fuzzing;
mod image;
mod info;
mod runtime;
mod status;
mod streams;

pub use service::listener::Error as ListenError;

use crate::app::App;
use crate::config::Config;
use crate::streaming::Gate;
use calls::Calls;
pub use calls::TARGET;
pub(crate) use calls::Traces;

/// Requests of one connection at the same time: more than `vmlet-criproxy` takes from kubelet, so
/// that none waits unseen in the transport. The bound on requests in progress answers in words.
const STREAMS_PER_CONNECTION: u32 = 8192;

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be had.
    #[error("listen on the CRI socket")]
    Listen(#[from] ListenError),
    /// The transport failed.
    #[error("serve the CRI")]
    Serve(#[source] tonic::transport::Error),
}

/// Serves until `stop` is done, then gives requests in progress the configured time to end.
pub async fn serve(
    app: App,
    config: &Config,
    gate: Arc<Gate>,
    traces: Traces,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let listener = Listener::bind(&config.listen).await?;
    tracing::info!(socket = %config.listen, "CRI server started");
    let calls = Calls::new(Arc::clone(app.containers.metrics()), traces);
    let runtime = runtime::Runtime::new(app.clone(), config, gate);
    let events = Arc::clone(&app.events);
    let images = image::Images::new(app);
    let grace = config.shutdown.timeout.get();
    // Streams of events end with the request to stop: the server waits for all streams.
    let stop = async move {
        stop.await;
        events.close();
    };
    serve_services(listener, runtime, images, calls, stop, grace).await
}

async fn serve_services<R: RuntimeService, I: ImageService>(
    listener: Listener,
    runtime: R,
    images: I,
    calls: Calls,
    stop: impl Future<Output = ()>,
    grace: Duration,
) -> Result<(), Error> {
    let runtime = RuntimeServiceServer::new(runtime)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let images = ImageServiceServer::new(images)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let stopping = CancellationToken::new();
    let socket = listener.claim();
    let server = Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .layer(calls)
        .add_service(runtime)
        .add_service(images)
        .serve_with_incoming_shutdown(listener.incoming(), stopping.clone().cancelled_owned());
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return ended.map_err(Error::Serve),
        () = stop => stopping.cancel(),
    }
    let ended = tokio::time::timeout(grace, server).await;
    socket.release();
    match ended {
        Ok(ended) => ended.map_err(Error::Serve),
        Err(_) => {
            tracing::warn!(?grace, "unfinished requests abandoned");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
