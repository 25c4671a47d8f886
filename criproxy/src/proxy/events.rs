//! Container events of all runtimes in one stream.
//!
//! Invariant: messages of a runtime pass whole and as they came. The stream outlives restarts of
//! runtimes: what happened meanwhile is found by comparing lists, and sent as events; no event is
//! missed or sent twice between the lists and the stream.
//! Failure: `Unimplemented` when the primary reports it, and its other refusals; a secondary
//! without events is polled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use futures_util::future::{join_all, select};
use http::Response;
use hyper::body::Frame;
use prost::Message;
use tokio::sync::mpsc;
use tonic::Code;

use super::answer::headers;
use super::{Call, Proxy, Secondary};
use crate::backend::Backend;
use crate::methods::Listing;
use crate::wire::{Body, frame_head};

mod report;
mod snapshot;
mod source;

use snapshot::Snapshot;
use source::End;

/// Events on their way to the client.
const ROOM: usize = 100;

/// Interval of the lists of a runtime that sends no events or is unavailable.
const PAUSE: Duration = Duration::from_secs(1);

/// The channel to the client; closed when the client has disconnected.
type Out = mpsc::Sender<Frame<Bytes>>;

/// A client and its request.
struct Client<'a> {
    call: &'a Call,
    out: &'a Out,
}

/// What a comparison of lists has led to.
struct CaughtUp {
    now: Snapshot,
    /// Ids of the objects that no longer exist.
    gone: BTreeSet<String>,
}

impl Client<'_> {
    /// False when the client has disconnected.
    async fn send(&self, event: Bytes) -> bool {
        for part in [frame_head(event.len()), event] {
            if !part.is_empty() && self.out.send(Frame::data(part)).await.is_err() {
                return false;
            }
        }
        true
    }
}

impl Proxy {
    /// Streams the container events of all runtimes.
    pub(super) async fn events(self: &Arc<Self>, call: &Call, message: &Bytes) -> Response<Body> {
        let (out, events) = mpsc::channel(ROOM);
        let proxy = Arc::clone(self);
        let call = call.clone();
        let message = message.clone();
        tokio::spawn(async move {
            let client = Client {
                call: &call,
                out: &out,
            };
            let others = proxy.secondaries.iter();
            let others = others.map(|s| proxy.events_of_secondary(s, &message, &client));
            let primary = Box::pin(proxy.events_of_primary(&message, &client));
            // The primary decides whether there are events at all.
            let all = select(primary, Box::pin(endless(join_all(others))));
            tokio::select! {
                _ = all => {}
                () = out.closed() => {}
            }
        });
        let mut response = Response::new(Body::Made(events));
        *response.headers_mut() = headers();
        response
    }

    async fn events_of_primary(&self, message: &Bytes, client: &Client<'_>) {
        let mut seen = None;
        loop {
            let relay = self.relay_events(&self.primary, None, message, &mut seen, client);
            match Box::pin(relay).await {
                End::Gone => return,
                End::Refused(refused) if refused.code != Code::Unavailable => {
                    let trailers = Frame::trailers(refused.into_trailers());
                    let _ = client.out.send(trailers).await;
                    return;
                }
                End::Refused(_) | End::Broken => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn events_of_secondary(
        &self,
        secondary: &Secondary,
        message: &Bytes,
        client: &Client<'_>,
    ) {
        let backend = &secondary.backend;
        let mut seen = None;
        let mut has_events = true;
        loop {
            if has_events {
                let relay = self.relay_events(backend, Some(secondary), message, &mut seen, client);
                match Box::pin(relay).await {
                    End::Gone => return,
                    End::Refused(refused) if refused.code == Code::Unimplemented => {
                        has_events = false;
                        continue;
                    }
                    End::Refused(_) | End::Broken => {}
                }
            } else {
                let before = seen.as_ref();
                let caught_up = self.catch_up_with(backend, Some(secondary), before, client.out);
                match caught_up.await {
                    Some(CaughtUp { now, .. }) => seen = Some(now),
                    None => return,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Passes events on until there are no more. What changed before the stream began is found by
    /// comparing lists; the events that arrive meanwhile wait.
    async fn relay_events(
        &self,
        backend: &Backend,
        secondary: Option<&Secondary>,
        message: &Bytes,
        seen: &mut Option<Snapshot>,
        client: &Client<'_>,
    ) -> End {
        let mut source = self.source(backend, client.call, message);
        if let Err(end) = source.open().await {
            return end;
        }
        let mut early = Vec::new();
        let mut ended = None;
        let caught_up = self.catch_up_with(backend, secondary, seen.as_ref(), client.out);
        let mut caught_up = Box::pin(caught_up);
        let result = loop {
            tokio::select! {
                result = &mut caught_up => break result,
                next = source.next(), if early.len() < ROOM && ended.is_none() => match next {
                    Ok(event) => early.push(event),
                    Err(end) => ended = Some(end),
                },
            }
        };
        drop(caught_up);
        let Some(CaughtUp { mut now, gone }) = result else {
            return End::Gone;
        };
        for event in early {
            // The client has what the lists contained already.
            let is_known = seen.is_some() && !now.would_change(&event, &gone);
            now.apply(&event);
            if !is_known && !client.send(event).await {
                return End::Gone;
            }
        }
        let now = seen.insert(now);
        if let Some(end) = ended {
            return end;
        }
        loop {
            let event = match source.next().await {
                Ok(event) => event,
                Err(end) => return end,
            };
            now.apply(&event);
            if !client.send(event).await {
                return End::Gone;
            }
        }
    }

    /// Sends the changes since the last snapshot; `None` when the client has disconnected.
    async fn catch_up_with(
        &self,
        backend: &Backend,
        secondary: Option<&Secondary>,
        before: Option<&Snapshot>,
        out: &Out,
    ) -> Option<CaughtUp> {
        let now = loop {
            match self.snapshot(backend, secondary).await {
                Some(now) => break now,
                None => tokio::time::sleep(PAUSE).await,
            }
        };
        let mut gone = BTreeSet::new();
        for change in before.map_or_else(Vec::new, |before| before.changes(&now)) {
            let event = self.report(backend, &now, &change).await.encode_to_vec();
            let whole = [&frame_head(event.len())[..], &event].concat();
            out.send(Frame::data(whole.into())).await.ok()?;
            if change.event == v1::ContainerEventType::ContainerDeletedEvent {
                gone.insert(change.id);
            }
        }
        Some(CaughtUp { now, gone })
    }

    /// What a runtime has; nothing is known while it is away.
    async fn snapshot(&self, backend: &Backend, secondary: Option<&Secondary>) -> Option<Snapshot> {
        let all = Bytes::new();
        let list = async |listing: Listing| {
            let call = Call::own(listing.path(), "events");
            match secondary {
                Some(secondary) => self.part(secondary, &call, listing, &all).await.ok(),
                None => {
                    let request = call.copy(&all);
                    let limit = self.limits.fanout_timeout.get();
                    let answer = backend.unary_within(limit, call.name, request).await;
                    answer.ok().map(|answer| answer.message)
                }
            }
        };
        let sandboxes = list(Listing::Sandboxes).await?;
        let containers = list(Listing::Containers).await?;
        Snapshot::decode(sandboxes, containers)
    }
}

async fn endless(work: impl Future) {
    work.await;
    std::future::pending().await
}
