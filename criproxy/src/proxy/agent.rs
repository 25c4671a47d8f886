//! What `vmlet-agent` gets: the status of the proxy, on a socket of its own.
//!
//! Invariant: no other call reaches a runtime from there, and runtimes are queried at most once in
//! [`REUSED`], however many requests come. Verbose information of a runtime, which may contain its
//! configuration, is not in the answer.
//! Failure: `PermissionDenied` for every other call; else as for kubelet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1::{RuntimeStatus, StatusRequest, StatusResponse};
use futures_util::future::join;
use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::Status;

use super::answer::own;
use super::node::OWN_VERSION;
use super::{Call, Proxy, TIMEOUT, status};
use crate::wire::{Body, read_opening, refusal};

/// The one call that is served.
const PATH: &str = "/runtime.v1.RuntimeService/Status";

/// Time for which an answer is used again.
const REUSED: Duration = Duration::from_secs(1);

/// The proxy, as the agent may see it.
#[derive(Debug)]
pub(crate) struct AgentView {
    proxy: Arc<Proxy>,
    last: Mutex<Option<(Instant, Result<Bytes, Status>)>>,
}

impl AgentView {
    pub(crate) fn new(proxy: Arc<Proxy>) -> Self {
        Self {
            proxy,
            last: Mutex::default(),
        }
    }

    /// Answers a call.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if request.uri().path() != PATH {
            return refusal(&Status::permission_denied(
                "this socket serves RuntimeService/Status and no other call",
            ));
        }
        if let Err(unreadable) = read_opening(request.into_body(), TIMEOUT).await.message {
            return refusal(&status(unreadable));
        }
        // Requests at the same time wait for one answer.
        let mut last = self.last.lock().await;
        let answer = match &*last {
            Some((when, answer)) if when.elapsed() < REUSED => answer.clone(),
            _ => {
                let answer = self.proxy.agent_status().await;
                *last = Some((Instant::now(), answer.clone()));
                answer
            }
        };
        drop(last);
        answer.map_or_else(|status| refusal(&status), own)
    }
}

impl Proxy {
    /// The conditions of all runtimes, and the proxy's version.
    async fn agent_status(&self) -> Result<Bytes, Status> {
        let call = Call::own(PATH, "Status");
        let message = Bytes::from(StatusRequest::default().encode_to_vec());
        let others = self.status_of_others(&call, &message);
        let primary = self.primary.unary(call.name, call.copy(&message));
        let primary = timeout(self.limits.fanout_timeout.get(), primary);
        let (primary, others) = join(primary, others).await;
        let primary = primary
            .map_err(|_| Status::deadline_exceeded("the primary runtime did not answer in time"))?
            .map_err(|failure| self.primary.unavailable(&failure.reason()))?;
        let more = others
            .into_iter()
            .flat_map(|(secondary, answer)| self.contribution(secondary, &answer, &primary));
        let merged: Vec<u8> = std::iter::once(primary.message.clone())
            .chain(more)
            .flatten()
            .collect();
        let merged = StatusResponse::decode(merged.as_slice())
            .map_err(|_| Status::internal("the status of a runtime cannot be decoded"))?;
        let answer = StatusResponse {
            status: Some(RuntimeStatus {
                conditions: merged.status.unwrap_or_default().conditions,
            }),
            info: [(OWN_VERSION.to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
            ..StatusResponse::default()
        };
        Ok(answer.encode_to_vec().into())
    }
}
