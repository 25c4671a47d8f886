//! Finds the runtime that owns an object.
//!
//! Invariant: an object is reported as unowned only when every runtime that could own it was
//! queried; one that could not be and may own it is named.
//! Failure: [`Found`] has all cases; there is no error beside.

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use tonic::Status;

use super::{Call, Proxy};
use crate::backend::Failure;
use crate::methods::{Listing, Object};
use crate::routes::PRIMARY;
use crate::state::{BackendIndex, Kind, LastKnown, Owner};
use crate::wire::{FirstId, FirstStatus, tagged};

/// Whose an object is.
#[derive(Debug)]
pub(super) enum Found {
    /// This runtime's.
    One(BackendIndex),
    /// Several objects have ids that begin so.
    Ambiguous,
    /// Unowned, as these runtimes say.
    Nowhere(Vec<BackendIndex>),
    /// Perhaps this runtime's, which cannot be queried.
    Away(Status),
}

impl Object {
    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::Sandbox => Kind::Sandbox,
            Self::Container => Kind::Container,
        }
    }

    pub(super) const fn listing(self) -> Listing {
        match self {
            Self::Sandbox => Listing::Sandboxes,
            Self::Container => Listing::Containers,
        }
    }
}

/// The id that a request about one object names.
pub(super) fn first_id(message: &Bytes) -> Option<String> {
    FirstId::decode(message.clone()).ok().map(|found| found.id)
}

impl Proxy {
    /// Whose the object is, by what is known already.
    pub(super) fn known_owner(&self, kind: Kind, id: &str) -> Option<Found> {
        match self.memory.owner(kind, id) {
            Owner::One(index) => return Some(Found::One(index)),
            Owner::Ambiguous => return Some(Found::Ambiguous),
            Owner::Unknown => {}
        }
        let foreign = self.secondaries.iter().all(|s| !s.may_name(id));
        foreign.then_some(Found::One(PRIMARY))
    }

    /// Whose the object is; asks those who may know.
    pub(super) async fn find(&self, call: &Call, object: Object, id: &str) -> Found {
        if id.is_empty() {
            return Found::One(PRIMARY);
        }
        if let Some(found) = self.known_owner(object.kind(), id) {
            return found;
        }
        let by_id = tagged(1, &tagged(1, id.as_bytes()));
        let may_own = self.secondaries.iter().filter(|s| s.may_name(id));
        let candidates = std::iter::once(PRIMARY).chain(may_own.map(|s| s.backend.index));
        let answers = join_all(candidates.map(|index| {
            let by_id = &by_id;
            async move { (index, self.holds(call, object, index, by_id).await) }
        }))
        .await;
        let mut holders = Vec::new();
        let mut deniers = Vec::new();
        let mut away = None;
        for (index, answer) in answers {
            match answer {
                Ok(Some(full)) => {
                    self.memory.learn(object.kind(), &full, index);
                    holders.push(index);
                }
                Ok(None) => deniers.push(index),
                Err(failure) if self.may_hold(index, object.kind()) => {
                    away = Some(self.backend(index).unavailable(&failure.reason()));
                }
                Err(_) => {}
            }
        }
        match (holders.as_slice(), away) {
            ([one], _) => Found::One(*one),
            ([], Some(status)) => Found::Away(status),
            ([], None) => Found::Nowhere(deniers),
            _ => Found::Ambiguous,
        }
    }

    /// The full id of an object that one runtime has.
    async fn holds(
        &self,
        call: &Call,
        object: Object,
        index: BackendIndex,
        by_id: &Bytes,
    ) -> Result<Option<String>, Failure> {
        let listing = object.listing();
        let request = call.other(listing.path(), by_id);
        let answer = match self.secondary(index) {
            Some(secondary) => secondary.query("find", request, &self.metrics).await?,
            None => {
                let limit = self.limits.fanout_timeout.get();
                self.primary.unary_within(limit, "find", request).await?
            }
        };
        let found = FirstStatus::decode(answer.message).ok();
        Ok(found.and_then(|f| f.status).map(|status| status.id))
    }

    /// Whether a runtime that does not answer may have objects.
    pub(super) fn may_hold(&self, index: BackendIndex, kind: Kind) -> bool {
        let nothing = |known| matches!(known, LastKnown::NeverConnected | LastKnown::OwnedNothing);
        index == PRIMARY || !nothing(self.memory.last_list(index, kind))
    }
}

pub(super) fn ambiguous(id: &str) -> Status {
    let id: String = id.chars().take(100).collect();
    Status::invalid_argument(format!("id {id:?} is the beginning of several ids"))
}
