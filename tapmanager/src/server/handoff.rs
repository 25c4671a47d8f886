//! The socket of `vmwrapper`: one message each way.
//!
//! Invariant: without a valid token the reply contains nothing, not even which sandboxes there are.
//! Failure: the answer names the reason; the connection is closed after it in any case.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fdpass::AsyncConnection;
use service::telemetry::one_line;
use tapmanager::wire::{HandoffReply, HandoffRequest, PROTOCOL_VERSION, WireError};

use super::refusals::Refusals;
use super::{HELLO_DEADLINE, Received, encode, invalid, other_version, receive, too_long};
use crate::sandboxes::Sandboxes;

/// Serves one peer, which keeps its place until it has its answer.
pub(super) async fn serve<P>(
    connection: AsyncConnection,
    _place: P,
    sandboxes: Arc<Sandboxes>,
    refusals: Arc<Refusals>,
) {
    let Received::Bytes(bytes) = receive(&connection, HELLO_DEADLINE).await else {
        return;
    };
    let answer = answer(&connection, &sandboxes, &bytes).await;
    let refusal = answer.as_ref().err().map(|error| error.code);
    sandboxes.metrics.handed_off(refusal);
    let (reply, taps) = match answer {
        Ok((nics, taps)) => (HandoffReply::Ok { nics }, taps),
        Err(error) => {
            let uid = connection.peer().map_or(u32::MAX, |peer| peer.uid);
            if let Some(before) = refusals.note(uid) {
                tracing::warn!(reason = error.message, before, "hand-off refused");
            }
            (HandoffReply::Error(error), Vec::new())
        }
    };
    let bytes = encode(&reply, &HandoffReply::Error(too_long()));
    let fds: Vec<_> = taps.iter().map(AsFd::as_fd).collect();
    match tokio::time::timeout(HELLO_DEADLINE, connection.send(&bytes, &fds)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = one_line(&error), "hand-off failed");
        }
        Err(_) => tracing::warn!("hand-off not received by the peer"),
    }
}

type Nics = (Vec<tapmanager::wire::HandoffNic>, Vec<OwnedFd>);

async fn answer(
    connection: &AsyncConnection,
    sandboxes: &Sandboxes,
    bytes: &[u8],
) -> Result<Nics, WireError> {
    let request: HandoffRequest =
        serde_json::from_slice(bytes).map_err(|error| invalid(format!("request: {error}")))?;
    if request.version != PROTOCOL_VERSION {
        return Err(other_version(request.version));
    }
    let peer = connection
        .peer()
        .map_err(|error| invalid(one_line(&error)))?;
    sandboxes
        .hand_off(&request.token, peer)
        .await
        .map_err(|failure| (&failure).into())
}
