//! The two sockets and those of starts: their clients, and the order of requests.
//!
//! Invariant: a peer is accepted by the user that the kernel reports, before a byte of it is read;
//! messages, connections, requests and waits are bounded; a request that has begun is finished even if its
//! peer disconnects.
//! Failure: a peer that breaks the rules gets [`ErrorCode::Invalid`] and loses its own connection
//! only.

mod control;
mod handoff;
mod places;
mod refusals;

use std::fs::Permissions;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fdpass::{AsyncConnection, AsyncListener, PeerCredentials};
use nix::unistd::{Uid, User, geteuid};
use serde::Serialize;
use service::signals::Ending;
use service::telemetry::one_line;
use tapmanager::wire::{ErrorCode, MAX_MESSAGE, PROTOCOL_VERSION, WireError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::consoles;
use crate::journal::Journal;
use crate::metrics::{self, Shared};
use crate::sandboxes::{Arrival, Sandboxes, StartSockets};
use places::{MAX_WAITING, Place, Places};
use refusals::Refusals;

/// For the first message of a peer.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// For the next request of a peer, and for it to take an answer.
const IDLE_DEADLINE: Duration = Duration::from_secs(60);
/// For requests that run when a shutdown is requested.
const GRACE: Duration = Duration::from_secs(10);
/// After a failed accept, of descriptors run out say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until SIGTERM or SIGINT. Networks stay up.
///
/// # Errors
/// When journal or sockets cannot be opened.
pub(crate) async fn run(config: &Config) -> Result<()> {
    let ending = Ending::watch().context("watch for SIGTERM and SIGINT")?;
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let journal = Journal::open(&config.state_dir).context("open the journal")?;
    let metrics = Shared::default();
    let qemu = config.qemu()?;
    make_directory(&config.handoff_socket)?;
    let (starts, arrived) = StartSockets::new(&config.handoff_socket, &qemu)
        .context("make the directory for the sockets of starts")?;
    let sandboxes = Sandboxes::new(config, journal, Arc::clone(&metrics), starts);
    let sandboxes = Arc::new(sandboxes.context("open the node's network")?);
    // Peers of a program that is started again wait for the sockets, not for the networks.
    let control = bind(&config.control_socket)?;
    let handoff = bind(&config.handoff_socket)?;
    open_to(&config.handoff_socket, &qemu)?;
    let recovery = sandboxes.load().await.context("read the journal")?;
    if let Some(endpoint) = &config.metrics.listen {
        let sandboxes = Arc::clone(&sandboxes);
        let metrics = Arc::clone(&metrics);
        let count = move || sandboxes.list().len();
        let serving = metrics::serve(endpoint, metrics, count, stop.clone());
        tasks.spawn(serving.await.context("serve metrics")?);
    }
    tasks.spawn(consoles::guard(config.console_dir.clone(), stop.clone()));
    let serve_control = {
        let sandboxes = Arc::clone(&sandboxes);
        let stop = stop.clone();
        move |connection, place| {
            control::serve(connection, place, Arc::clone(&sandboxes), stop.clone())
        }
    };
    let expected = Arc::clone(&sandboxes);
    let recovering = Arc::clone(&sandboxes);
    let refusals = Arc::<Refusals>::default();
    let serve_starts = serve_starts(
        arrived,
        Arc::clone(&sandboxes),
        Arc::clone(&refusals),
        tasks.clone(),
    );
    let serve_starts = stop.clone().run_until_cancelled_owned(serve_starts);
    tasks.spawn(async move {
        serve_starts.await;
    });
    let refused = refusals;
    let serve_handoff = move |connection, place| {
        handoff::serve(
            connection,
            place,
            Arc::clone(&sandboxes),
            Arc::clone(&refused),
        )
    };
    let own = geteuid();
    let counted = (metrics, Arc::<Refusals>::default());
    tasks.spawn(accept(
        (control, "control"),
        move |uid| uid == own,
        serve_control,
        counted.clone(),
        stop.clone(),
        tasks.clone(),
    ));
    let allowed =
        move |uid: Uid| uid == qemu.uid || uid.is_root() || expected.expects(uid.as_raw());
    tasks.spawn(accept(
        (handoff, "hand-off"),
        allowed,
        serve_handoff,
        counted,
        stop.clone(),
        tasks.clone(),
    ));
    tracing::info!(control = %config.control_socket.display(),
        handoff = %config.handoff_socket.display(), "tapmanager started");
    let recover = recovering.recover(recovery, tasks.clone(), stop.clone());
    tasks.spawn(recover);

    ending.received().await;
    stop.cancel();
    tasks.close();
    let finished = tokio::time::timeout(GRACE, tasks.wait()).await.is_ok();
    tracing::info!(finished, "tapmanager stopped, networks kept");
    Ok(())
}

fn bind(path: &Path) -> Result<AsyncListener> {
    make_directory(path)?;
    AsyncListener::bind(path, 0o600).with_context(|| format!("listen on {}", path.display()))
}

/// The directory of a socket.
fn make_directory(path: &Path) -> Result<()> {
    if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
        // Machines must get through to the hand-off socket, whatever our umask.
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::set_permissions(dir, Permissions::from_mode(0o755)))
            .with_context(|| format!("make {}", dir.display()))?;
    }
    Ok(())
}

/// Lets QEMU's user and the group that all machines share connect.
fn open_to(socket: &Path, qemu: &User) -> Result<()> {
    std::os::unix::fs::chown(socket, Some(qemu.uid.as_raw()), Some(qemu.gid.as_raw()))
        .and_then(|()| std::fs::set_permissions(socket, Permissions::from_mode(0o660)))
        .with_context(|| format!("give {} to QEMU's user", socket.display()))
}

/// Serves the connections to sockets of starts, each of which sends one at a time.
async fn serve_starts(
    mut arrived: mpsc::Receiver<Arrival>,
    sandboxes: Arc<Sandboxes>,
    refusals: Arc<Refusals>,
    tasks: TaskTracker,
) {
    while let Some(Arrival { connection, served }) = arrived.recv().await {
        let sandboxes = Arc::clone(&sandboxes);
        let refusals = Arc::clone(&refusals);
        tasks.spawn(handoff::serve(connection, served, sandboxes, refusals));
    }
}

/// Starts a task for every connection of an allowed user until `stop`.
async fn accept<F, S>(
    (listener, socket): (AsyncListener, &'static str),
    allowed: impl Fn(Uid) -> bool,
    serve: S,
    (metrics, refusals): (Shared, Arc<Refusals>),
    stop: CancellationToken,
    tasks: TaskTracker,
) where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(AsyncConnection, Place) -> F,
{
    let places = Places::new();
    loop {
        let next = async { (places.next().await, listener.accept().await) };
        let Some((place, connection)) = stop.run_until_cancelled(next).await else {
            return;
        };
        let connection = match connection {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(socket, error = one_line(&error), "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match connection.peer() {
            Ok(PeerCredentials { uid, .. }) if allowed(Uid::from_raw(uid)) => {
                tasks.spawn(serve(connection, place));
            }
            Ok(PeerCredentials { pid, uid, .. }) => {
                metrics.refused(socket);
                if let Some(before) = refusals.note(uid) {
                    tracing::warn!(
                        socket,
                        pid,
                        uid,
                        before,
                        reason = "this user may not use the socket",
                        "connection refused"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(socket, error = one_line(&error), "connection refused");
            }
        }
    }
}

/// A message of the peer.
enum Received {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// The peer no longer exists, silent, or sent what is no message.
    Nothing,
}

async fn receive(connection: &AsyncConnection, deadline: Duration) -> Received {
    match tokio::time::timeout(deadline, connection.recv(MAX_MESSAGE)).await {
        // Clients must not send descriptors; they are closed here.
        Ok(Ok(Some(message))) => Received::Bytes(message.bytes),
        Ok(Err(error)) => {
            tracing::debug!(error = one_line(&error), "connection closed");
            Received::Nothing
        }
        Ok(Ok(None)) | Err(_) => Received::Nothing,
    }
}

/// The bytes of an answer; one that is too long becomes an error.
fn encode(answer: &impl Serialize, too_long: &impl Serialize) -> Vec<u8> {
    let bytes = serde_json::to_vec(answer).unwrap_or_default();
    if (1..=MAX_MESSAGE).contains(&bytes.len()) {
        return bytes;
    }
    serde_json::to_vec(too_long).unwrap_or_default()
}

fn invalid(message: impl Into<String>) -> WireError {
    WireError {
        code: ErrorCode::Invalid,
        message: message.into(),
    }
}

fn too_long() -> WireError {
    let message = "the answer does not fit a message".to_owned();
    WireError {
        code: ErrorCode::System,
        message,
    }
}

fn crowded() -> WireError {
    let message = format!(
        "{MAX_WAITING} requests wait for CNI plugins or for their sandboxes: repeat it later"
    );
    WireError {
        code: ErrorCode::System,
        message,
    }
}

fn other_version(version: u32) -> WireError {
    let message = format!("the peer speaks version {version}, we speak {PROTOCOL_VERSION}");
    WireError {
        code: ErrorCode::Version,
        message,
    }
}
