//! Container events of all runtimes in one stream.
//!
//! Invariant: messages of a runtime pass whole and as they came. The stream outlives restarts of
//! runtimes: what happened meanwhile is found by comparing lists, and sent as events.
//! Failure: `Unimplemented` when the primary reports it, and its other refusals; a secondary
//! without events is polled.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use futures_util::future::{Either, join_all, select};
use http::Response;
use hyper::body::{Body as _, Frame};
use prost::Message;
use tokio::sync::mpsc;
use tonic::Code;

use super::answer::headers;
use super::made::nanoseconds;
use super::readable::is_readable;
use super::{Call, Proxy, Secondary};
use crate::backend::{Backend, Refused};
use crate::methods::Listing;
use crate::routes::PRIMARY;
use crate::wire::{Body, Messages, code_of, frame_head};

mod snapshot;

use snapshot::{Change, Snapshot};

/// Events on their way to the client.
const ROOM: usize = 100;

/// Interval of the lists of a runtime that sends no events or is unavailable.
const PAUSE: Duration = Duration::from_secs(1);

const POD_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";

/// The channel to the client; closed when the client has disconnected.
type Out = mpsc::Sender<Frame<Bytes>>;

/// What the client knows of a runtime, once that is known itself.
type Seen = Mutex<Option<Snapshot>>;

/// How a runtime's events ended.
enum End {
    /// The client has disconnected.
    Gone,
    /// The runtime refuses to send any.
    Refused(Box<Refused>),
    /// The connection broke, or the stream did.
    Broken,
}

impl Proxy {
    /// Of all.
    pub(super) async fn events(self: &Arc<Self>, call: &Call, message: &Bytes) -> Response<Body> {
        let (out, events) = mpsc::channel(ROOM);
        let proxy = Arc::clone(self);
        let call = call.clone();
        let message = message.clone();
        tokio::spawn(async move {
            let others = proxy.secondaries.iter();
            let others = others.map(|s| proxy.events_of_secondary(s, &call, &message, &out));
            let primary = Box::pin(proxy.events_of_primary(&call, &message, &out));
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

    async fn events_of_primary(&self, call: &Call, message: &Bytes, out: &Out) {
        let seen = Seen::default();
        loop {
            let backend = &self.primary;
            let catch_up = self.catch_up_with(backend, None, &seen, out);
            let relay = self.relay_events(backend, call, message, &seen, out);
            match Box::pin(beside(relay, catch_up)).await {
                End::Gone => return,
                End::Refused(refused) if refused.code != Code::Unavailable => {
                    let _ = out.send(Frame::trailers(refused.into_trailers())).await;
                    return;
                }
                End::Refused(_) | End::Broken => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn events_of_secondary(
        &self,
        secondary: &Secondary,
        call: &Call,
        message: &Bytes,
        out: &Out,
    ) {
        let backend = &secondary.backend;
        let seen = Seen::default();
        let mut tells = true;
        loop {
            if tells {
                let catch_up = self.catch_up_with(backend, Some(secondary), &seen, out);
                let relay = self.relay_events(backend, call, message, &seen, out);
                match Box::pin(beside(relay, catch_up)).await {
                    End::Gone => return,
                    End::Refused(refused) if refused.code == Code::Unimplemented => {
                        tells = false;
                        continue;
                    }
                    End::Refused(_) | End::Broken => {}
                }
            } else {
                self.catch_up_with(backend, Some(secondary), &seen, out)
                    .await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Passes events on until there are no more.
    async fn relay_events(
        &self,
        backend: &Backend,
        call: &Call,
        message: &Bytes,
        seen: &Seen,
        out: &Out,
    ) -> End {
        let running = backend.meter(call.name);
        let Ok(response) = backend.send(call.copy(message)).await else {
            running.end(Code::Unavailable);
            return End::Broken;
        };
        let (parts, body) = response.into_parts();
        if body.is_end_stream() {
            let code = code_of(&parts.headers).unwrap_or(Code::Unknown);
            running.end(code);
            return End::Refused(Box::new(Refused::new(code, parts.headers, None)));
        }
        let mut messages = Messages::new(body);
        loop {
            match messages.next().await {
                Ok(Some(event)) => {
                    if backend.index != PRIMARY && !is_readable(EVENTS, &event) {
                        running.end(Code::Internal);
                        return End::Broken;
                    }
                    if let Some(snapshot) = &mut *lock(seen) {
                        snapshot.apply(&event);
                    }
                    for part in [frame_head(event.len()), event] {
                        if !part.is_empty() && out.send(Frame::data(part)).await.is_err() {
                            return End::Gone;
                        }
                    }
                }
                Ok(None) => {
                    let trailers = messages.into_trailers();
                    let code = code_of(&trailers).unwrap_or(Code::Unavailable);
                    running.end(code);
                    // An end without an error is that of a runtime which restarts.
                    return match code {
                        Code::Ok | Code::Cancelled | Code::Unavailable => End::Broken,
                        code => End::Refused(Box::new(Refused::new(
                            code,
                            parts.headers,
                            Some(trailers),
                        ))),
                    };
                }
                Err(_) => {
                    running.end(Code::Unavailable);
                    return End::Broken;
                }
            }
        }
    }

    /// Sends the changes since the last snapshot.
    async fn catch_up_with(
        &self,
        backend: &Backend,
        secondary: Option<&Secondary>,
        seen: &Seen,
        out: &Out,
    ) {
        let now = loop {
            match self.snapshot(backend, secondary).await {
                Some(now) => break now,
                None => tokio::time::sleep(PAUSE).await,
            }
        };
        let changes = lock(seen).as_ref().map(|before| before.changes(&now));
        for change in changes.unwrap_or_default() {
            let event = self.event(backend, &now, &change).await.encode_to_vec();
            let whole = [&frame_head(event.len())[..], &event].concat();
            if out.send(Frame::data(whole.into())).await.is_err() {
                return;
            }
        }
        *lock(seen) = Some(now);
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
        Snapshot::of(sandboxes, containers)
    }

    /// The event of a change, with the pod's status as far as there is one.
    async fn event(
        &self,
        backend: &Backend,
        now: &Snapshot,
        change: &Change,
    ) -> v1::ContainerEventResponse {
        let query = async |path, id: &str| {
            let request = Call::own(path, "events").copy(&crate::wire::tagged(1, id.as_bytes()));
            let limit = self.limits.fanout_timeout.get();
            let answer = backend.unary_within(limit, "events", request).await;
            answer.map(|answer| answer.message).unwrap_or_default()
        };
        let pod = query(POD_STATUS, &change.sandbox).await;
        let pod = v1::PodSandboxStatusResponse::decode(pod).unwrap_or_default();
        let mut containers_statuses = pod.containers_statuses;
        if containers_statuses.is_empty() {
            for container in now.containers_of(&change.sandbox) {
                let status = query(STATUS, container).await;
                let status = v1::ContainerStatusResponse::decode(status).unwrap_or_default();
                containers_statuses.extend(status.status);
            }
        }
        v1::ContainerEventResponse {
            container_id: change.id.clone(),
            container_event_type: change.event.into(),
            created_at: nanoseconds(),
            pod_sandbox_status: pod.status,
            containers_statuses,
        }
    }
}

fn lock(seen: &Seen) -> MutexGuard<'_, Option<Snapshot>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the first comes to; the second is given up then.
async fn beside<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> T {
    match select(pin!(first), pin!(second)).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), first)) => first.await,
    }
}

async fn endless(work: impl Future) {
    work.await;
    std::future::pending().await
}
