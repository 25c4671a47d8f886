//! Streams of the initial state, followed by every change.
//!
//! Invariant: a client gets each thing at least as it was after its last change; changes in between
//! may be left out. The mark between the first things and the changes comes once.
//! Failure: a client that does not read delays only itself; its stream ends with the server.

use std::collections::BTreeMap;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Messages that wait for a slow client.
const BACKLOG: usize = 64;

/// A change, as a message.
pub(super) enum Change<'a, K, V> {
    /// It is new or has changed.
    Is(&'a V),
    /// It no longer exists.
    Gone(&'a K),
    /// The initial list is complete.
    Synced,
}

/// Sends what `look` returns, now and whenever one of `changes` fires.
pub(super) fn stream<K, V, M>(
    mut changes: Vec<watch::Receiver<u64>>,
    look: impl Fn() -> BTreeMap<K, V> + Send + 'static,
    encode: impl Fn(Change<'_, K, V>) -> Option<M> + Send + 'static,
    stop: CancellationToken,
) -> ReceiverStream<Result<M, Status>>
where
    K: Ord + Clone + Send + Sync + 'static,
    V: PartialEq + Send + Sync + 'static,
    M: Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        let mut known = BTreeMap::new();
        let mut synced = false;
        loop {
            for changes in &mut changes {
                changes.mark_unchanged();
            }
            let now = look();
            let mut messages = Vec::new();
            for (key, value) in &now {
                if known.get(key) != Some(value) {
                    messages.extend(encode(Change::Is(value)));
                }
            }
            for key in known.keys().filter(|key| !now.contains_key(*key)) {
                messages.extend(encode(Change::Gone(key)));
            }
            if !synced {
                messages.extend(encode(Change::Synced));
                synced = true;
            }
            known = now;
            for message in messages {
                tokio::select! {
                    () = stop.cancelled() => return,
                    sent = sender.send(Ok(message)) => if sent.is_err() { return },
                }
            }
            let any = changes.iter_mut().map(|one| Box::pin(one.changed()));
            let more = tokio::select! {
                () = stop.cancelled() => return,
                () = sender.closed() => return,
                (more, ..) = futures_util::future::select_all(any) => more,
            };
            if more.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}
