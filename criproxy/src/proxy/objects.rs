//! Calls about one sandbox or container.
//!
//! Invariant: requests and replies are passed on unchanged. Stop and remove succeed for an unknown
//! object only when all that may have it report it.
//! Failure: the owner's own error; `Unavailable` when the owner is away and its last answer does
//! not serve.

use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use prost::Message;
use tonic::{Code, Status};

use super::answer::{own, pass};
use super::find::{Found, ambiguous, first_id};
use super::forward::Learn;
use super::{Call, Proxy, Secondary};
use crate::backend::Failure;
use crate::methods::Object;
use crate::routes::PRIMARY;
use crate::state::{BackendIndex, Owner};
use crate::wire::{Body, FirstStatus, Opening, fields, refusal};

impl Proxy {
    /// Passes a call to the backend that owns the object.
    pub(super) async fn owned(
        &self,
        call: &Call,
        object: Object,
        opening: Opening,
        message: &Bytes,
    ) -> Response<Body> {
        let id = first_id(message).unwrap_or_default();
        match self.find(call, object, &id).await {
            Found::One(index) => self.forward(index, call, opening.into(), None).await,
            Found::Nowhere(_) => self.forward(PRIMARY, call, opening.into(), None).await,
            Found::Ambiguous => refusal(&ambiguous(&id)),
            Found::Away(status) => refusal(&status),
        }
    }

    /// Answers by the owner of the object, or by its last report.
    pub(super) async fn status(
        &self,
        call: &Call,
        object: Object,
        opening: Opening,
        message: &Bytes,
    ) -> Response<Body> {
        let id = first_id(message).unwrap_or_default();
        match self.find(call, object, &id).await {
            Found::One(index) => match self.secondary(index) {
                Some(secondary) => self.status_of(secondary, call, object, &id, message).await,
                None => self.forward(index, call, opening.into(), None).await,
            },
            Found::Nowhere(_) => self.forward(PRIMARY, call, opening.into(), None).await,
            Found::Ambiguous => refusal(&ambiguous(&id)),
            Found::Away(status) => refusal(&status),
        }
    }

    async fn status_of(
        &self,
        secondary: &Secondary,
        call: &Call,
        object: Object,
        id: &str,
        message: &Bytes,
    ) -> Response<Body> {
        let index = secondary.backend.index;
        let failure = match self.query(index, call.name, call.copy(message)).await {
            Ok(answer) => {
                if !is_verbose(message)
                    && let Ok(found) = FirstStatus::decode(answer.message.clone())
                    && let Some(found) = found.status
                {
                    let kind = object.kind();
                    self.memory
                        .store_status(index, kind, &found.id, &answer.message);
                }
                return pass(answer);
            }
            Err(failure) => failure,
        };
        let doubtful = match &failure {
            Failure::Refused(refused) if refused.code == Code::NotFound => {
                !self.trusts(secondary, object).await
            }
            failure => failure.is_away(),
        };
        if doubtful && let Some(last) = self.memory.last_status(index, object.kind(), id) {
            self.metrics.stale(&secondary.backend.name, call.name);
            return own(last);
        }
        if doubtful && !failure.is_away() {
            let why = "it came back without what it had, which is not believed yet";
            return refusal(&secondary.backend.unavailable(why));
        }
        failure.into_response(&secondary.backend)
    }

    /// Passes the call to the owner of the object; to all possible owners when it is unknown.
    pub(super) async fn end(
        &self,
        call: &Call,
        object: Object,
        opening: Opening,
        message: &Bytes,
    ) -> Response<Body> {
        let id = first_id(message).unwrap_or_default();
        match self.find(call, object, &id).await {
            Found::One(index) => self.forward(index, call, opening.into(), None).await,
            Found::Nowhere(all) => self.end_everywhere(call, &all, message).await,
            Found::Ambiguous => refusal(&ambiguous(&id)),
            Found::Away(status) => refusal(&status),
        }
    }

    /// As [`Proxy::end`]; afterwards the object is forgotten.
    pub(super) async fn remove(
        self: &std::sync::Arc<Self>,
        call: &Call,
        object: Object,
        opening: Opening,
        message: &Bytes,
    ) -> Response<Body> {
        let id = first_id(message).unwrap_or_default();
        match self.find(call, object, &id).await {
            Found::One(index) => {
                let proxy = std::sync::Arc::clone(self);
                let forget = Learn::new(move |_| proxy.memory.forget(object.kind(), &id));
                self.forward(index, call, opening.into(), forget).await
            }
            Found::Nowhere(all) => self.end_everywhere(call, &all, message).await,
            Found::Ambiguous => refusal(&ambiguous(&id)),
            Found::Away(status) => refusal(&status),
        }
    }

    async fn end_everywhere(
        &self,
        call: &Call,
        all: &[BackendIndex],
        message: &Bytes,
    ) -> Response<Body> {
        let calls = all.iter().map(|index| async move {
            let answer = self.query(*index, call.name, call.copy(message)).await;
            (*index, answer)
        });
        let mut first = None;
        for (index, answer) in join_all(calls).await {
            match answer {
                Ok(answer) => first = first.or(Some(answer)),
                Err(failure) => return failure.into_response(self.backend(index)),
            }
        }
        match first {
            Some(answer) => pass(answer),
            None => refusal(&Status::unavailable("no runtime could be asked")),
        }
    }

    /// Passes the call to the owner of the object if it is known, else to the primary.
    pub(super) async fn unknown(&self, call: &Call, opening: Opening) -> Response<Body> {
        let id = opening.message.as_ref().ok().and_then(first_id);
        let owner = id.filter(|id| !id.is_empty()).and_then(|id| {
            [Object::Sandbox, Object::Container]
                .into_iter()
                .find_map(|object| match self.memory.owner(object.kind(), &id) {
                    Owner::One(index) => Some(index),
                    _ => None,
                })
        });
        let index = owner.unwrap_or(PRIMARY);
        self.forward(index, call, opening.into(), None).await
    }
}

/// Whether a status request is verbose.
fn is_verbose(message: &[u8]) -> bool {
    fields(message).any(|field| field.is_ok_and(|f| f.number == 2))
}
