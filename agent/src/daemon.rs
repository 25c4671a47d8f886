//! Follows a stream of the daemon indefinitely, also over restarts of the daemon.
//!
//! Invariant: the receiver gets [`Event::Connected`] first, then items, [`Event::Synced`] once all
//! that was known was sent, and [`Event::Lost`] before anything of the next connection.
//! Failure: a daemon that is away or hangs is `Lost`; attempts continue with growing pauses.

use std::pin::Pin;

use nodeapi::v1::node_client::NodeClient;
use nodeapi::v1::{
    InfoRequest, InfoResponse, MachineEvent, PullEvent, SourceEvent, TaskEvent,
    WatchMachinesRequest, WatchPullsRequest, WatchSourcesRequest, WatchTasksRequest,
};
use service::backoff::Backoff;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// The daemon's client; clones share a connection.
pub(crate) type Daemon = NodeClient<Channel>;

/// An item or a change of state of a stream.
#[derive(Debug)]
pub(crate) enum Event<T> {
    /// A daemon answered; everything it knows follows.
    Connected(Box<InfoResponse>),
    /// Something it knows.
    Item(T),
    /// The daemon has sent everything that it had.
    Synced,
    /// It is away.
    Lost,
}

/// A message that may mark the end of the initial list.
pub(crate) trait StreamEvent: Sized + Send + 'static {
    /// For log lines.
    const WHAT: &'static str;

    /// Opens the stream.
    fn open(daemon: Daemon) -> Opening<Self>;

    /// Whether the initial list is complete before this message.
    fn synced(&self) -> bool;
}

/// A stream that is being opened.
pub(crate) type Opening<T> = Pin<Box<dyn Future<Output = Result<Streaming<T>, Status>> + Send>>;

impl StreamEvent for TaskEvent {
    const WHAT: &'static str = "tasks";

    fn open(mut daemon: Daemon) -> Opening<Self> {
        Box::pin(async move {
            let stream = daemon.watch_tasks(WatchTasksRequest {}).await?;
            Ok(stream.into_inner())
        })
    }

    fn synced(&self) -> bool {
        self.synced
    }
}

impl StreamEvent for MachineEvent {
    const WHAT: &'static str = "machines";

    fn open(mut daemon: Daemon) -> Opening<Self> {
        Box::pin(async move {
            let stream = daemon.watch_machines(WatchMachinesRequest {}).await?;
            Ok(stream.into_inner())
        })
    }

    fn synced(&self) -> bool {
        self.synced
    }
}

impl StreamEvent for SourceEvent {
    const WHAT: &'static str = "sources";

    fn open(mut daemon: Daemon) -> Opening<Self> {
        Box::pin(async move {
            let stream = daemon.watch_sources(WatchSourcesRequest {}).await?;
            Ok(stream.into_inner())
        })
    }

    fn synced(&self) -> bool {
        self.synced
    }
}

impl StreamEvent for PullEvent {
    const WHAT: &'static str = "pulls";

    fn open(mut daemon: Daemon) -> Opening<Self> {
        Box::pin(async move {
            let stream = daemon.watch_pulls(WatchPullsRequest {}).await?;
            Ok(stream.into_inner())
        })
    }

    fn synced(&self) -> bool {
        self.synced
    }
}

/// Follows until `stop`, or until the receiver is dropped.
pub(crate) async fn follow<T: StreamEvent>(
    daemon: Daemon,
    events: Sender<Event<T>>,
    stop: CancellationToken,
    reconnected: impl Fn() + Send,
) {
    let mut backoff = Backoff::default();
    let mut was_away = false;
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = once(&daemon, &events, &mut backoff, &mut was_away) => ended,
        };
        let Err(ended) = ended else { return };
        if events.send(Event::Lost).await.is_err() {
            return;
        }
        if !was_away {
            was_away = true;
            tracing::warn!(what = T::WHAT, error = ended, "daemon stream ended");
        }
        reconnected();
        let pause = backoff.failed(Instant::now());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One connection. `Ok` when the receiver was dropped, else why the connection ended.
async fn once<T: StreamEvent>(
    daemon: &Daemon,
    events: &Sender<Event<T>>,
    backoff: &mut Backoff,
    was_away: &mut bool,
) -> Result<(), String> {
    let response = daemon.clone().info(InfoRequest {}).await;
    let info = response
        .map_err(|status| status_message(&status))?
        .into_inner();
    let opened = T::open(daemon.clone()).await;
    let mut stream = opened.map_err(|status| status_message(&status))?;
    tracing::info!(
        reconnected = *was_away,
        what = T::WHAT,
        version = info.version,
        "daemon connected"
    );
    *was_away = false;
    if events.send(Event::Connected(Box::new(info))).await.is_err() {
        return Ok(());
    }
    let mut synced = false;
    loop {
        let item = match stream.message().await {
            Ok(Some(item)) => item,
            Ok(None) => return Err("the daemon ended the stream".to_owned()),
            Err(status) => return Err(status_message(&status)),
        };
        if !synced && item.synced() {
            synced = true;
            backoff.reset();
            if events.send(Event::Synced).await.is_err() {
                return Ok(());
            }
        }
        if events.send(Event::Item(item)).await.is_err() {
            return Ok(());
        }
    }
}

/// Code and message of a status, bounded.
pub(crate) fn status_message(status: &Status) -> String {
    let message = crds::text::printable(status.message(), 512);
    format!("{:?}: {message}", status.code())
}
