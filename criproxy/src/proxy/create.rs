//! Calls that create sandboxes and containers.
//!
//! Invariant: the pod's uid is remembered before the sandbox is made, so that its images are pulled
//! where it runs.
//! Failure: `InvalidArgument` for hints that contradict each other; else the runtime's own.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use prost::Message;
use tonic::Status;

use super::find::{Found, ambiguous, first_id};
use super::forward::Learn;
use super::{Call, Proxy, made};
use crate::methods::Object;
use crate::routes::PRIMARY;
use crate::state::{BackendIndex, Kind};
use crate::wire::{Body, Opening, RestorePod, RunPodSandbox, SandboxConfig, keep_fields, refusal};

impl Proxy {
    /// Passes the call to the runtime that the pod requests.
    pub(super) async fn run_sandbox(
        self: &Arc<Self>,
        call: &Call,
        opening: Opening,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let Ok(run) = RunPodSandbox::decode(message.clone()) else {
            // The primary reports what is wrong with it, with the error that its clients know.
            return Ok(self.forward(PRIMARY, call, opening.into(), None).await);
        };
        let pod = Pod {
            config: run.config.as_ref(),
            handler: &run.runtime_handler,
            handler_field: 2,
        };
        self.make_sandbox(call, opening, message, &pod).await
    }

    /// Passes the call to the runtime that the pod requests.
    pub(super) async fn restore_pod(
        self: &Arc<Self>,
        call: &Call,
        opening: Opening,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let Ok(restore) = RestorePod::decode(message.clone()) else {
            return Ok(self.forward(PRIMARY, call, opening.into(), None).await);
        };
        let pod = Pod {
            config: restore.config.as_ref(),
            handler: &restore.runtime_handler,
            handler_field: 3,
        };
        self.make_sandbox(call, opening, message, &pod).await
    }

    async fn make_sandbox(
        self: &Arc<Self>,
        call: &Call,
        opening: Opening,
        message: &Bytes,
        pod: &Pod<'_>,
    ) -> Result<Response<Body>, Status> {
        let choice = self.routes.sandbox(pod.handler, pod.config);
        let choice = choice.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let uid = pod.config.map_or("", SandboxConfig::uid);
        if !uid.is_empty() {
            self.memory.learn_uid(uid, choice.backend);
        }
        let body = if choice.blank_handler {
            let kept = keep_fields(message, |field| field.number != pod.handler_field);
            let kept = kept.map_err(|e| Status::invalid_argument(e.to_string()))?;
            Body::changed(opening, kept)
        } else {
            opening.into()
        };
        let learn = self.learn_made(Kind::Sandbox, choice.backend, message);
        Ok(self.forward(choice.backend, call, body, learn).await)
    }

    /// Passes the call to the owner of the sandbox.
    pub(super) async fn create_container(
        self: &Arc<Self>,
        call: &Call,
        opening: Opening,
        message: &Bytes,
    ) -> Response<Body> {
        let id = first_id(message).unwrap_or_default();
        let index = match self.find(call, Object::Sandbox, &id).await {
            Found::One(index) => index,
            Found::Nowhere(_) => PRIMARY,
            Found::Ambiguous => return refusal(&ambiguous(&id)),
            Found::Away(status) => return refusal(&status),
        };
        let learn = self.learn_made(Kind::Container, index, message);
        self.forward(index, call, opening.into(), learn).await
    }

    /// Remembers a new object; if a secondary made it, also how its next list will show it.
    fn learn_made(
        self: &Arc<Self>,
        kind: Kind,
        owner: BackendIndex,
        request: &Bytes,
    ) -> Option<Learn> {
        if owner == PRIMARY {
            return self.learn_id(kind, owner);
        }
        let proxy = Arc::clone(self);
        let request = request.clone();
        Learn::new(move |answer| {
            let id = first_id(&answer).unwrap_or_default();
            let entry = match kind {
                Kind::Sandbox => made::sandbox(&id, &request),
                Kind::Container => made::container(&id, &request),
                Kind::Image => None,
            };
            match entry {
                _ if id.is_empty() => {}
                Some(entry) => proxy.memory.store_created(owner, kind, &entry),
                None => proxy.memory.learn(kind, &id, owner),
            }
        })
    }

    /// Remembers whose the object is that the answer names first.
    pub(super) fn learn_id(self: &Arc<Self>, kind: Kind, owner: BackendIndex) -> Option<Learn> {
        let proxy = Arc::clone(self);
        Learn::new(move |message| {
            if let Some(id) = first_id(&message).filter(|id| !id.is_empty()) {
                proxy.memory.learn(kind, &id, owner);
            }
        })
    }
}

/// What decides about a new sandbox.
struct Pod<'a> {
    config: Option<&'a SandboxConfig>,
    handler: &'a str,
    handler_field: u32,
}
