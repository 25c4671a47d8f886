//! Routes each call.
//!
//! Invariant: a call ends with the answer of the runtime that it belongs to, or with the reason why
//! that runtime cannot be queried. A list is complete or an error.
//! Failure: `Unavailable` when a runtime that is needed is away, `InvalidArgument` for
//! contradictory hints and unreadable requests; everything else comes from the runtimes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;

mod agent;
mod answer;
mod call;
mod create;
mod descriptors;
mod events;
mod find;
mod forward;
mod images;
mod lists;
mod made;
mod monitor;
mod node;
mod objects;
mod readable;
mod remembered;
mod secondary;
mod streams;

pub(crate) use agent::AgentView;
pub(crate) use call::Call;
use descriptors::Accepted;
use secondary::Secondary;

use crate::backend::{Answer, Backend, Failure, Link};
use crate::config::Config;
use crate::methods::{Plan, plan};
use crate::metrics::Metrics;
use crate::routes::{PRIMARY, Routes};
use crate::state::{BackendIndex, Memory};
use crate::wire::{Body, Opening, Unreadable, read_opening, refusal};

/// Longest wait for the message of a request that has begun.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the first message of a method that is not known: it may be one where the server
/// speaks first.
const UNKNOWN_TIMEOUT: Duration = Duration::from_millis(200);

/// The proxy itself.
#[derive(Debug)]
pub(crate) struct Proxy {
    primary: Backend,
    secondaries: Vec<Secondary>,
    routes: Routes,
    memory: Memory,
    limits: crate::config::Limits,
    accepted: Accepted,
    runtime_config: Mutex<Option<Bytes>>,
    metrics: Arc<Metrics>,
    answered: std::sync::atomic::AtomicBool,
}

impl Proxy {
    pub(crate) fn new(config: &Config, memory: Memory, metrics: &Arc<Metrics>) -> Self {
        let limits = config.limits;
        let link = |socket: &std::path::Path| Link::new(socket, limits.connect_timeout.get());
        let primary = Backend::new(
            PRIMARY,
            config.primary.name.as_str().into(),
            link(&config.primary.socket),
            Arc::clone(metrics),
        );
        let secondaries = config.secondary.iter().enumerate().map(|(at, settings)| {
            let backend = Backend::new(
                BackendIndex(at + 1),
                settings.name.as_str().into(),
                link(&settings.socket),
                Arc::clone(metrics),
            );
            Secondary::new(backend, settings, &limits)
        });
        Self {
            primary,
            secondaries: secondaries.collect(),
            routes: Routes::new(config),
            memory,
            limits,
            accepted: Accepted::default(),
            runtime_config: Mutex::default(),
            metrics: Arc::clone(metrics),
            answered: false.into(),
        }
    }

    /// Answers a call.
    pub(crate) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (name, plan) = plan(request.uri().path());
        let (parts, body) = request.into_parts();
        let call = Call::new(parts, name);
        if plan == Plan::Foreign {
            let chunks = Default::default();
            let body = Body::Replay { chunks, rest: body };
            return self.forward(PRIMARY, &call, body, None).await;
        }
        let timeout = match plan {
            Plan::Unknown => UNKNOWN_TIMEOUT,
            _ => TIMEOUT,
        };
        let opening = read_opening(body, timeout).await;
        let ended = match plan {
            Plan::Unknown => Ok(self.unknown(&call, opening).await),
            plan => match &opening.message {
                Ok(message) => {
                    let message = message.clone();
                    self.known(&call, plan, opening, message).await
                }
                Err(unreadable) => Err(status(*unreadable)),
            },
        };
        ended.unwrap_or_else(|status| refusal(&status))
    }

    async fn known(
        self: &Arc<Self>,
        call: &Call,
        plan: Plan,
        opening: Opening,
        message: Bytes,
    ) -> Result<Response<Body>, Status> {
        match plan {
            Plan::Owned(object) => Ok(self.owned(call, object, opening, &message).await),
            Plan::Status(object) => Ok(self.status(call, object, opening, &message).await),
            Plan::End(object) => Ok(self.end(call, object, opening, &message).await),
            Plan::Remove(object) => Ok(self.remove(call, object, opening, &message).await),
            Plan::RunSandbox => self.run_sandbox(call, opening, &message).await,
            Plan::RestorePod => self.restore_pod(call, opening, &message).await,
            Plan::CreateContainer => Ok(self.create_container(call, opening, &message).await),
            Plan::PullImage => self.pull_image(call, opening, &message).await,
            Plan::Primary => Ok(self.forward(PRIMARY, call, opening.into(), None).await),
            plan => {
                let message = opening.only(TIMEOUT).await.map_err(status)?;
                self.merged(call, plan, &message).await
            }
        }
    }

    /// Calls whose whole request is at hand and whose answer may be put together.
    async fn merged(
        self: &Arc<Self>,
        call: &Call,
        plan: Plan,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        match plan {
            Plan::List(listing) => self.list(call, listing, message).await,
            Plan::Stream(listing) => self.stream(call, listing, message).await,
            Plan::ImageStatus => self.image_status(call, message).await,
            Plan::RemoveImage => self.remove_image(call, message).await,
            Plan::ImageFsInfo => Ok(self.image_fs_info(call, message).await),
            Plan::Version => Ok(self.version(call, message).await),
            Plan::NodeStatus => Ok(self.node_status(call, message).await),
            Plan::UpdateRuntimeConfig => Ok(self.update_runtime_config(call, message).await),
            Plan::MetricDescriptors => Ok(self.metric_descriptors(call, message).await),
            Plan::Events => Ok(self.events(call, message).await),
            _ => Err(Status::internal("no plan for this method")),
        }
    }

    /// Waits until what was learned is written down; false when it is not within `limit`. Blocks.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        self.memory.flush(limit)
    }

    fn backend(&self, index: BackendIndex) -> &Backend {
        match self.secondary(index) {
            Some(secondary) => &secondary.backend,
            None => &self.primary,
        }
    }

    fn secondary(&self, index: BackendIndex) -> Option<&Secondary> {
        self.secondaries.get(index.0.checked_sub(1)?)
    }

    /// Calls one runtime: the primary for as long as the caller waits, others briefly.
    async fn query(
        &self,
        index: BackendIndex,
        method: &'static str,
        request: Request<Body>,
    ) -> Result<Answer, Failure> {
        match self.secondary(index) {
            Some(secondary) => secondary.query(method, request, &self.metrics).await,
            None => self.primary.unary(method, request).await,
        }
    }
}

fn status(unreadable: Unreadable) -> Status {
    let text = unreadable.to_string();
    match unreadable {
        Unreadable::TooLong(_) => Status::resource_exhausted(text),
        Unreadable::Compressed => Status::unimplemented(text),
        Unreadable::Late => Status::deadline_exceeded(text),
        Unreadable::Truncated | Unreadable::Surplus => Status::invalid_argument(text),
        Unreadable::Broken => Status::cancelled(text),
    }
}
