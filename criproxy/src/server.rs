//! Starts the proxy, serves and shuts down.
//!
//! Invariant: kubelet is listened to before anything else can be slow; no runtime is waited for.
//! Failure: [`Error`] names what makes service impossible. An error of one connection ends that
//! connection. Without the agent's socket the proxy serves kubelet all the same.

use std::convert::Infallible;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nix::fcntl::{Flock, FlockArg};
use service::admin_http::{self, Endpoint, MetricsServer};
use service::listener::Listener;
use service::telemetry::one_line;
use service::{boot_id, listener};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{CONNECTION_WINDOW, FRAME, HEADERS, RESETS, STREAM_WINDOW};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::proxy::{AgentView, Proxy};
use crate::socket::{Socket, drive};
use crate::state::{self, BackendSpec, Memory};
use crate::wire::Body;

/// Calls at the same time on one connection; kubelet has one.
const STREAMS: u32 = 4096;

/// Connections of the agent at the same time, which has one. More wait.
const AGENTS: usize = 4;

/// Longest time to write down what was learned last. What is not written is not known after a
/// start, and lists of a secondary that is away fail then: a disk that is slow for a moment is
/// waited for.
const FLUSH: Duration = Duration::from_secs(3);

/// A timer set to a moment before that of every other costs a system call. With this one always
/// ticking, the deadlines of calls are later.
const PULSE: Duration = Duration::from_secs(1);

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket for kubelet.
    #[error(transparent)]
    Listen(#[from] listener::Error),
    /// No socket for metrics.
    #[error("serve metrics")]
    Metrics(#[from] admin_http::Error),
    /// The boot id cannot be read.
    #[error("read the boot id from {}", path.display())]
    BootId {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Another proxy uses the state directory, or it cannot be made.
    #[error("take the state directory {} for this proxy alone", dir.display())]
    Lock {
        /// The directory.
        dir: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The state directory cannot be used.
    #[error("open the state directory")]
    State(#[source] state::Error),
    /// The task that opened it was ended.
    #[error("wait for the state directory")]
    Ended(#[source] tokio::task::JoinError),
}

/// Serves until `shutdown`, then ends the calls in progress within the configured time.
///
/// # Errors
///
/// [`Error`] when service cannot begin.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let listener = Listener::bind(&config.listen).await?;
    let socket = listener.claim();
    let _lock = lock(&config.state_dir)?;
    let memory = open(&config).await?;
    let metrics = Arc::new(Metrics::new());
    let proxy = Arc::new(Proxy::new(&config, memory, &metrics));
    let stop = CancellationToken::new();
    let _ends_with_us = stop.clone().drop_guard();
    if let Some(settings) = &config.metrics {
        let metrics = Arc::clone(&metrics);
        let server = MetricsServer::listen(&Endpoint::Tcp(settings.listen)).await?;
        tokio::spawn(server.serve(stop.clone(), move || metrics.text()));
    }
    proxy.watch(&stop);
    serve_agent(&config, &proxy, &stop).await;
    tracing::info!(listen = %config.listen.display(), "CRI proxy started");

    let connections = TaskTracker::new();
    let mut shutdown = pin!(shutdown);
    let mut pulse = tokio::time::interval(PULSE);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            _ = pulse.tick() => continue,
            stream = listener.accept() => stream,
        };
        let proxy = Arc::clone(&proxy);
        let answer = move |request| Box::pin(Arc::clone(&proxy).answer(request));
        connections.spawn(connection(stream, answer, stop.clone()));
    }
    drop(listener);
    socket.release();
    stop.cancel();
    connections.close();
    let drained = tokio::time::timeout(config.limits.drain.get(), connections.wait()).await;
    let left = connections.len();
    tracing::info!(left, drained = drained.is_ok(), "calls in progress ended");
    let flushed = tokio::task::spawn_blocking(move || proxy.flush(FLUSH)).await;
    if !matches!(flushed, Ok(true)) {
        tracing::warn!("state directory not flushed");
    }
    Ok(())
}

/// Keeps a second proxy away from the state directory.
fn lock(dir: &Path) -> Result<Flock<File>, Error> {
    let failed = |source| Error::Lock {
        dir: dir.into(),
        source,
    };
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.map_err(failed)?;
    let file = File::create(dir.join("lock")).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| failed(errno.into()))
}

async fn open(config: &Config) -> Result<Memory, Error> {
    let path = &config.boot_id_file;
    let boot_id = boot_id::read(path).map_err(|source| Error::BootId {
        path: path.clone(),
        source,
    })?;
    let dir = config.state_dir.clone();
    let specs = specs(config);
    let opened = tokio::task::spawn_blocking(move || Memory::open(&dir, &specs, &boot_id));
    opened.await.map_err(Error::Ended)?.map_err(Error::State)
}

/// The runtimes, the primary first.
pub(crate) fn specs(config: &Config) -> Vec<BackendSpec> {
    let primary = BackendSpec {
        name: config.primary.name.clone(),
        id_suffix: None,
    };
    let others = config.secondary.iter().map(|secondary| BackendSpec {
        name: secondary.name.clone(),
        id_suffix: secondary.id_suffix.clone(),
    });
    std::iter::once(primary).chain(others).collect()
}

/// Serves the status to the agent, in the background.
async fn serve_agent(config: &Config, proxy: &Arc<Proxy>, stop: &CancellationToken) {
    let path = &config.status_listen;
    if path.as_os_str().is_empty() {
        return;
    }
    let listener = match Listener::bind_for(path, config.agent_uid).await {
        Ok(listener) => listener,
        Err(error) => {
            let error = one_line(&error);
            tracing::error!(error, "status not served to the agent");
            return;
        }
    };
    let view = Arc::new(AgentView::new(Arc::clone(proxy)));
    let stop = stop.clone();
    tokio::spawn(async move {
        let socket = listener.claim();
        let places = Arc::new(Semaphore::new(AGENTS));
        let serving = async {
            loop {
                let place = Arc::clone(&places).acquire_owned().await;
                let stream = listener.accept().await;
                let view = Arc::clone(&view);
                let answer = move |request| {
                    let view = Arc::clone(&view);
                    Box::pin(async move { view.answer(request).await })
                };
                let connection = connection(stream, answer, stop.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
        };
        tokio::select! {
            () = stop.cancelled() => socket.release(),
            () = serving => {}
        }
    });
}

/// Serves one connection, until its end or `stop`.
async fn connection<A, F>(stream: UnixStream, answer: A, stop: CancellationToken)
where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(|request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(None);
    let socket = match Socket::new(stream) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "client connection closed after errors");
            return;
        }
    };
    let outgoing = socket.outgoing();
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        ended = drive(connection.as_mut(), &outgoing) => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            drive(connection.as_mut(), &outgoing).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client connection failed");
    }
}
