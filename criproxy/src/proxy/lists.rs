//! Lists of several runtimes in one answer.
//!
//! Invariant: the answer is the bytes of the runtimes' answers one behind the other. It misses no
//! sandbox and no container that a runtime may have: the last report of a secondary represents it
//! while it is away.
//! Failure: the primary's own error; `Unavailable` when a secondary is away and what it had is not
//! known.

use bytes::Bytes;
use futures_util::future::{join, join_all};
use http::Response;
use prost::Message;
use tonic::Status;

use super::answer::{merge, own, pass};
use super::find::{Found, ambiguous};
use super::{Call, Proxy, Secondary, remembered};
use crate::backend::Failure;
use crate::methods::{Listing, Object};
use crate::routes::PRIMARY;
use crate::state::{Kind, LastKnown};
use crate::wire::{Body, ListById, ListContainerStats, ListContainers};

impl Listing {
    /// What is remembered of such lists.
    pub(super) const fn kind(self) -> Option<Kind> {
        match self {
            Self::Sandboxes => Some(Kind::Sandbox),
            Self::Containers => Some(Kind::Container),
            Self::Images => Some(Kind::Image),
            Self::ContainerStats | Self::SandboxStats | Self::SandboxMetrics => None,
        }
    }

    /// What disappears when such a list misses it.
    const fn object(self) -> Option<Object> {
        match self {
            Self::Sandboxes => Some(Object::Sandbox),
            Self::Containers => Some(Object::Container),
            _ => None,
        }
    }

    /// The object that the request's filter names, if it names one.
    pub(super) fn named(self, message: &Bytes) -> Option<(Object, String)> {
        let message = message.clone();
        let (container, sandbox) = match self {
            Self::Sandboxes | Self::SandboxStats => {
                let filter = ListById::decode(message).ok()?.filter?;
                (String::new(), filter.id)
            }
            Self::Containers => {
                let filter = ListContainers::decode(message).ok()?.filter?;
                (filter.id, filter.pod_sandbox_id)
            }
            Self::ContainerStats => {
                let filter = ListContainerStats::decode(message).ok()?.filter?;
                (filter.id, filter.pod_sandbox_id)
            }
            Self::Images | Self::SandboxMetrics => return None,
        };
        if !container.is_empty() {
            return Some((Object::Container, container));
        }
        (!sandbox.is_empty()).then_some((Object::Sandbox, sandbox))
    }
}

impl Proxy {
    /// Passes a list call to all backends, or to the owner of what the filter names.
    pub(super) async fn list(
        &self,
        call: &Call,
        listing: Listing,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        if let Some((object, id)) = listing.named(message) {
            match self.known_owner(object.kind(), &id) {
                Some(Found::One(PRIMARY)) => {
                    let answer = self.query(PRIMARY, call.name, call.copy(message)).await;
                    return Ok(answer.map_or_else(|e| e.into_response(&self.primary), pass));
                }
                Some(Found::One(index)) => {
                    if let Some(secondary) = self.secondary(index) {
                        let part = self.part(secondary, call, listing, message).await?;
                        return Ok(own(part));
                    }
                }
                Some(Found::Ambiguous) => return Err(ambiguous(&id)),
                _ => {}
            }
        }
        let primary = self.primary.unary(call.name, call.copy(message));
        let parts = async {
            // The primary's request leaves first: its list is the longest, and it works while we
            // write the others.
            tokio::task::yield_now().await;
            let parts = self.secondaries.iter();
            join_all(parts.map(|s| self.part(s, call, listing, message))).await
        };
        let (primary, parts) = join(primary, parts).await;
        let primary = match primary {
            Ok(answer) => answer,
            Err(failure) => return Ok(failure.into_response(&self.primary)),
        };
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some(kind) = listing.kind().filter(|_| is_complete(message)) {
            self.memory.store_list(PRIMARY, kind, &primary.message);
        }
        Ok(merge(primary, parts))
    }

    /// A secondary's part of a list.
    pub(super) async fn part(
        &self,
        secondary: &Secondary,
        call: &Call,
        listing: Listing,
        message: &Bytes,
    ) -> Result<Bytes, Status> {
        let request = call.other(listing.path(), message);
        let failure = match secondary.query(call.name, request, &self.metrics).await {
            Ok(answer)
                if self
                    .takes(secondary, listing, message, &answer.message)
                    .await =>
            {
                return Ok(match listing {
                    Listing::SandboxMetrics => self.described(secondary, answer.message).await,
                    _ => answer.message,
                });
            }
            Ok(_) => {
                let why = "it came back without what it had, which is not believed yet";
                Failure::Down(why.into())
            }
            Err(failure) => failure,
        };
        self.remembered_part(secondary, call, listing, message, &failure)
    }

    /// The last report of a secondary, for its part of a list.
    pub(super) fn remembered_part(
        &self,
        secondary: &Secondary,
        call: &Call,
        listing: Listing,
        message: &Bytes,
        failure: &Failure,
    ) -> Result<Bytes, Status> {
        let backend = &secondary.backend;
        let Some(kind) = listing.kind() else {
            return Ok(Bytes::new());
        };
        match self.memory.last_list(backend.index, kind) {
            LastKnown::NeverConnected | LastKnown::OwnedNothing => Ok(Bytes::new()),
            LastKnown::Lost => Err(backend.unavailable(&failure.reason())),
            LastKnown::Known(all) => {
                let reason = failure.reason();
                tracing::debug!(backend = %backend.name, ?kind, reason, "stale list served");
                self.metrics.stale(&backend.name, call.name);
                if is_complete(message) {
                    return Ok(all);
                }
                let kept = remembered::filtered(kind, &all, message);
                kept.map_err(|e| Status::internal(format!("filter what is remembered: {e}")))
            }
        }
    }

    /// Whether a secondary's list is believed; remembers it if it is complete.
    async fn takes(
        &self,
        secondary: &Secondary,
        listing: Listing,
        message: &Bytes,
        list: &Bytes,
    ) -> bool {
        let Some(kind) = listing.kind() else {
            return true;
        };
        if !is_complete(message) {
            return match listing.object() {
                Some(object) => self.trusts(secondary, object).await,
                None => true,
            };
        }
        let index = secondary.backend.index;
        if let Some(object) = listing.object() {
            let had_some = matches!(self.memory.last_list(index, kind), LastKnown::Known(_));
            if !secondary.believes(object, list.is_empty(), had_some) {
                let name = &*secondary.backend.name;
                tracing::warn!(backend = name, ?kind, "empty list ignored");
                return false;
            }
        }
        self.memory.store_list(index, kind, list);
        true
    }

    /// Whether what a secondary reports on its present connection is believed; requests a complete
    /// list to find out.
    pub(super) async fn trusts(&self, secondary: &Secondary, object: Object) -> bool {
        let index = secondary.backend.index;
        let last = self.memory.last_list(index, object.kind());
        if secondary.is_trusted(object) || !matches!(last, LastKnown::Known(_)) {
            return true;
        }
        self.refresh(secondary, object.listing()).await.is_ok()
    }

    /// Asks a secondary for a complete list, for the sake of remembering it.
    pub(super) async fn refresh(
        &self,
        secondary: &Secondary,
        listing: Listing,
    ) -> Result<(), Failure> {
        let all = Bytes::new();
        let call = Call::own(listing.path(), "refresh");
        let request = call.copy(&all);
        let answer = secondary.query("refresh", request, &self.metrics).await?;
        let list = answer.message;
        if Box::pin(self.takes(secondary, listing, &all, &list)).await {
            Ok(())
        } else {
            Err(Failure::Down("its list is not believed yet".into()))
        }
    }
}

/// Whether a list request is for everything: without a filter, or with an empty one.
pub(super) fn is_complete(message: &[u8]) -> bool {
    matches!(message, [] | [0x0a, 0x00])
}
