//! Starts the daemon, serves and shuts down.
//!
//! Invariant: virtual machines run on whatever happens here; SIGTERM and SIGINT end it in order and
//! in time.
//! Failure: [`Error`] names the part that makes service impossible.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use service::open_files;
use service::signals::Ending;
use service::telemetry::RequestTraces;
use tokio_util::sync::CancellationToken;

use crate::app::{self, App};
use crate::config::{self, Config};
use crate::cri;
use crate::helper;
use crate::metrics;
use crate::node;
use crate::node_settings::Local;
use crate::streaming::{self, Streaming};

/// Time for threads that still block when everything else has ended.
const STRAGGLERS: Duration = Duration::from_secs(1);
/// Time for clients of sessions to receive the reason of their end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Open files that 1,000 machines need, with room for requests.
const ENOUGH_FILES: u64 = 8192;

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No threads or no signals to be had.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// The services do not start.
    #[error("start")]
    App(#[from] app::Error),
    /// The CRI cannot be served.
    #[error(transparent)]
    Cri(#[from] cri::Error),
    /// The node API cannot be served.
    #[error(transparent)]
    Node(#[from] node::Error),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] service::admin_http::Error),
    /// Streaming sessions cannot be served.
    #[error(transparent)]
    Streaming(#[from] streaming::Error),
}

/// Certificate and key of the streaming server, if it has TLS.
fn tls_files(settings: &config::Streaming) -> Option<streaming::tls::Files> {
    let certificate = (*settings.tls_cert).clone();
    let key = (*settings.tls_key).clone();
    certificate
        .zip(key)
        .map(|(certificate, key)| streaming::tls::Files { certificate, key })
}

/// Runs the daemon until a shutdown is requested. With `traces`, requests of the CRI are parts of the
/// traces of their clients.
pub fn run(local: impl Into<Local>, traces: Option<Arc<dyn RequestTraces>>) -> Result<(), Error> {
    allow_open_files();
    // While no file of a volume is open.
    helper::prepare();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let ended = runtime.block_on(serve(local.into(), traces));
    runtime.shutdown_timeout(STRAGGLERS);
    ended
}

/// A running machine needs some descriptors: console, log and what watches them.
fn allow_open_files() {
    match open_files::raise() {
        Ok(limit) if limit < ENOUGH_FILES => {
            tracing::warn!(
                limit,
                enough = ENOUGH_FILES,
                "open file limit is low: raise the hard limit for many machines"
            );
        }
        Ok(limit) => tracing::debug!(limit, "open file limit set"),
        Err(e) => tracing::warn!(error = crate::one_line(&e), "open file limit not set"),
    }
}

async fn serve(local: Local, traces: cri::Traces) -> Result<(), Error> {
    let ending = Ending::watch().map_err(Error::Runtime)?;
    let config = &local.config().clone();
    let app = App::start(local).await?;
    let grace = config.shutdown.timeout.get();
    let mut deadline = None;
    let shutdown = async {
        ending.received().await;
        tracing::info!("shutdown requested");
        deadline = Some(Instant::now() + grace);
    };
    let served = Box::pin(serve_both(&app, config, traces, shutdown)).await;
    // The requests in progress and what they left running share one deadline.
    let left = deadline.map_or(grace, |deadline| {
        deadline.saturating_duration_since(Instant::now())
    });
    app.stop(left).await;
    tracing::info!("daemon stopped");
    served
}

/// Serves both sockets until `shutdown` is done, or one of them cannot be served any more.
async fn serve_both(
    app: &App,
    config: &Config,
    traces: cri::Traces,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    if let Some(endpoint) = &config.metrics.listen {
        // A scrape in progress ends with the process.
        tokio::spawn(metrics::serve(endpoint, app.clone(), stop.clone()).await?);
    }
    let tls = tls_files(&config.streaming);
    let streaming = Streaming::bind(config.streaming.listen, tls.as_ref()).await?;
    let gate = streaming.gate();
    let cri = stop.clone().cancelled_owned();
    let cri = cri::serve(app.clone(), config, gate, traces, cri);
    let node = node::serve(app.node_services(), config, stop.clone().cancelled_owned());
    let both = async {
        tokio::try_join!(async { cri.await.map_err(Error::from) }, async {
            node.await.map_err(Error::from)
        },)
        .map(drop)
    };
    tokio::pin!(both);
    let closing = CancellationToken::new();
    let sessions = streaming.serve(Arc::clone(&app.containers), closing.clone());
    tokio::pin!(sessions);
    tokio::select! {
        ended = &mut both => return ended,
        () = &mut sessions => {}
        () = shutdown => {
            // Sessions of clients end before the requests in progress.
            closing.cancel();
            let _ = tokio::time::timeout(FAREWELL, sessions).await;
        }
    }
    stop.cancel();
    both.await
}
