//! The daemon's socket.
//!
//! Invariant: the first request is a hello of our version; every request gets one reply.
//! Failure: after a request that does not parse, or an idle minute, the connection is closed. One
//! request too many of those that may wait is refused, and its connection continues.

use std::sync::Arc;
use std::time::Instant;

use fdpass::AsyncConnection;
use tapmanager::wire::{Answer, PROTOCOL_VERSION, Reply, Request, WireError};
use tokio_util::sync::CancellationToken;

use super::places::{Place, may_wait};
use super::{
    HELLO_DEADLINE, IDLE_DEADLINE, Received, crowded, encode, invalid, other_version, receive,
    too_long,
};
use crate::failure::Failure;
use crate::metrics;
use crate::sandboxes::Sandboxes;

/// Whether the peer may continue.
enum Then {
    Continue,
    Close,
}

/// Serves one peer until it goes, breaks the rules, or the program ends.
pub(super) async fn serve(
    connection: AsyncConnection,
    mut place: Place,
    sandboxes: Arc<Sandboxes>,
    stop: CancellationToken,
) {
    let mut greeted = false;
    loop {
        if stop.run_until_cancelled(place.hold()).await.is_none() {
            return;
        }
        let deadline = if greeted {
            IDLE_DEADLINE
        } else {
            HELLO_DEADLINE
        };
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = receive(&connection, deadline) => received,
        };
        let Received::Bytes(bytes) = received else {
            return;
        };
        let (reply, then) = match serde_json::from_slice::<Request>(&bytes) {
            Err(error) => (
                Reply::Error(invalid(format!("request: {error}"))),
                Then::Close,
            ),
            Ok(Request::Hello {
                version: PROTOCOL_VERSION,
            }) => {
                greeted = true;
                (Reply::Ok(hello()), Then::Continue)
            }
            Ok(Request::Hello { version }) => (Reply::Error(other_version(version)), Then::Close),
            Ok(_) if !greeted => (
                Reply::Error(invalid("the first request must be a hello")),
                Then::Close,
            ),
            Ok(request) => {
                let kind = metrics::kind(&request);
                let begun = Instant::now();
                let reply = answer_in(&mut place, &sandboxes, request).await;
                sandboxes.metrics.requested(kind, begun, &reply);
                (reply, Then::Continue)
            }
        };
        let bytes = encode(&reply, &Reply::Error(too_long()));
        let sent = tokio::time::timeout(IDLE_DEADLINE, connection.send(&bytes, &[])).await;
        if !matches!((sent, then), (Ok(Ok(())), Then::Continue)) {
            return;
        }
    }
}

fn hello() -> Answer {
    Answer::Hello {
        version: PROTOCOL_VERSION,
        server: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Answers a request; one that may wait leaves its place to others meanwhile.
async fn answer_in(place: &mut Place, sandboxes: &Sandboxes, request: Request) -> Reply {
    if !may_wait(&request) {
        return answer(sandboxes, request).await;
    }
    match place.leave() {
        Some(_waiting) => answer(sandboxes, request).await,
        None => Reply::Error(crowded()),
    }
}

async fn answer(sandboxes: &Sandboxes, request: Request) -> Reply {
    match dispatch(sandboxes, request).await {
        Ok(answer) => Reply::Ok(answer),
        Err(failure) => Reply::Error(WireError::from(&failure)),
    }
}

async fn dispatch(sandboxes: &Sandboxes, request: Request) -> Result<Answer, Failure> {
    Ok(match request {
        Request::Hello { .. } => hello(),
        Request::Add(request) => Answer::Network(Box::new(sandboxes.add(*request).await?)),
        Request::Get { id } => Answer::Network(Box::new(sandboxes.get(&id).await?)),
        Request::Check { id } => sandboxes.check(&id).await.map(|()| Answer::Done)?,
        Request::Del { id } => sandboxes.del(&id).await.map(|()| Answer::Done)?,
        Request::List {} => Answer::Ids {
            ids: sandboxes.list(),
        },
        Request::Gc { keep } => Answer::Ids {
            ids: sandboxes.gc(&keep).await,
        },
        Request::Status {} => Answer::Status(sandboxes.status().await),
        Request::Counters { after } => {
            let (sandboxes, more) = sandboxes.counters(&after).await?;
            Answer::Counters { sandboxes, more }
        }
        Request::Routes { id } => Answer::Routes {
            routes: sandboxes.routes(&id).await?,
        },
        Request::PrepareStart(start) => Answer::Token(sandboxes.prepare_start(start).await?),
    })
}
