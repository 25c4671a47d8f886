//! Frames for the guest.
//!
//! Invariant: both queues are of bounded length. Notices go before requests, and the end of a session overtakes
//! its start.
//! Failure: a guest that takes none of very many notices ends the connection.

use std::sync::Arc;

use bytes::Bytes;
use guestapi::{ToGuest, encode, to_guest};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::guest::sessions::Sessions;

/// Frames for the guest.
#[derive(Debug, Clone)]
pub(in crate::guest) struct Outbox {
    /// Requests and input; each waits for room.
    pub(super) requests: mpsc::Sender<Waiting>,
    /// Acknowledgements, ends and greetings.
    pub(super) notices: mpsc::Sender<Bytes>,
    /// The connection is of no use any more.
    pub(super) broken: CancellationToken,
}

/// A request or input that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    frame: Bytes,
    /// The session that it starts.
    starts: Option<u64>,
}

impl Outbox {
    /// Sends a request or input, when there is room; false when the connection has ended.
    pub(in crate::guest) async fn request(&self, message: impl Into<ToGuest>) -> bool {
        let message = message.into();
        let starts = match &message.kind {
            Some(to_guest::Kind::Start(start)) => Some(start.session),
            _ => None,
        };
        let frame = encode(&message);
        self.requests.send(Waiting { frame, starts }).await.is_ok()
    }

    /// Sends a notice without waiting. After the end of the connection no notice is needed; a
    /// guest that takes none of very many ends it.
    pub(in crate::guest) fn notify(&self, message: impl Into<ToGuest>) {
        if self.notices.try_send(encode(&message.into())).is_err() {
            self.broken.cancel();
        }
    }
}

/// Writes frames until the connection ends or no sender is left. The end of a session overtakes its
/// start, if that still waits: then the session must not start.
pub(super) async fn write(
    mut guest: OwnedWriteHalf,
    mut waiting: mpsc::Receiver<Waiting>,
    mut urgent: mpsc::Receiver<Bytes>,
    sessions: Arc<Sessions>,
) {
    loop {
        let frame = tokio::select! {
            biased;
            Some(frame) = urgent.recv() => frame,
            Some(Waiting { frame, starts }) = waiting.recv() => {
                if starts.is_some_and(|session| !sessions.has(session)) {
                    continue;
                }
                frame
            }
            else => return,
        };
        if guest.write_all(&frame).await.is_err() {
            return;
        }
    }
}
