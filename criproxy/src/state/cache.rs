//! What one secondary has last said: whether it has ever answered, its complete lists, statuses of
//! its objects.
//!
//! Invariant: a list is there whole or not at all; a status is kept only for an object that the
//! backend is known to have. Everything here has a file ([`Slot`]) from which it is read back after
//! a restart.
//! Failure: none; statuses beyond [`MAX_STATUS`] bytes are not kept.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use prost::Message;

use super::{BackendIndex, Kind, LastKnown, entries};

/// Largest status answer that is kept, in bytes.
const MAX_STATUS: usize = 256 * 1024;

/// One file of the state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// The marker that a backend has answered once.
    Connected(BackendIndex),
    /// A complete list.
    List(BackendIndex, Kind),
    /// All statuses of one kind.
    Statuses(BackendIndex, Kind),
    /// The ids that a backend is known to have.
    Ids(BackendIndex),
    /// The boot in which everything else was written; the last one, so that it is written after
    /// them.
    Boot,
}

impl Slot {
    /// The owner, if only one runtime has it.
    pub(super) const fn backend(self) -> Option<BackendIndex> {
        match self {
            Self::Connected(backend)
            | Self::List(backend, _)
            | Self::Statuses(backend, _)
            | Self::Ids(backend) => Some(backend),
            Self::Boot => None,
        }
    }

    /// Name of the file in the backend's directory, or in the state directory.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::Connected(_) => "connected",
            Self::List(_, Kind::Sandbox) => "sandboxes.list",
            Self::List(_, Kind::Container) => "containers.list",
            Self::List(_, Kind::Image) => "images.list",
            Self::Statuses(_, Kind::Sandbox) => "sandboxes.status",
            Self::Statuses(_, Kind::Container) => "containers.status",
            Self::Statuses(_, Kind::Image) => "images.status",
            Self::Ids(_) => "ids",
            Self::Boot => "boot",
        }
    }
}

/// One backend's answers.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) connected: bool,
    lists: [Option<Bytes>; 3],
    statuses: [BTreeMap<String, Bytes>; 3],
}

/// Payload of a file of statuses.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Statuses {
    /// One entry for each.
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Status>,
}

/// One object's status answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Status {
    /// Full id.
    #[prost(string, tag = "1")]
    pub(super) id: String,
    /// The answer, serialized.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) response: Bytes,
}

/// Payload of a file of ids.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Ids {
    /// Sandboxes.
    #[prost(string, repeated, tag = "1")]
    pub(super) sandboxes: Vec<String>,
    /// Containers.
    #[prost(string, repeated, tag = "2")]
    pub(super) containers: Vec<String>,
    /// Images.
    #[prost(string, repeated, tag = "3")]
    pub(super) images: Vec<String>,
}

impl Cache {
    /// What is known without asking.
    pub(super) fn last_list(&self, kind: Kind) -> LastKnown {
        match &self.lists[kind.index()] {
            Some(list) if entries::count(list) == 0 => LastKnown::OwnedNothing,
            Some(list) => LastKnown::Known(list.clone()),
            None if self.connected => LastKnown::Lost,
            None => LastKnown::NeverConnected,
        }
    }

    /// The list as it is kept.
    pub(super) fn list(&self, kind: Kind) -> Option<&Bytes> {
        self.lists[kind.index()].as_ref()
    }

    /// Replaces a list; true if it was another.
    pub(super) fn set_list(&mut self, kind: Kind, list: Bytes) -> bool {
        let slot = &mut self.lists[kind.index()];
        let changed = slot.as_ref() != Some(&list);
        if changed {
            *slot = Some(list);
        }
        changed
    }

    /// Replaces a status; true if it was another.
    pub(super) fn set_status(&mut self, kind: Kind, id: &str, response: &Bytes) -> bool {
        let statuses = &mut self.statuses[kind.index()];
        if response.len() > MAX_STATUS {
            return statuses.remove(id).is_some();
        }
        if statuses.get(id) == Some(response) {
            return false;
        }
        // A copy: what the transport hands out may be part of a much larger buffer.
        statuses.insert(id.to_owned(), Bytes::copy_from_slice(response));
        true
    }

    /// The status of the object with that id, or the only one whose id begins like that.
    pub(super) fn status(&self, kind: Kind, id: &str) -> Option<(&str, &Bytes)> {
        let from = (Bound::Included(id), Bound::Unbounded);
        let mut after = self.statuses[kind.index()].range::<str, _>(from);
        let (found, response) = after.next().filter(|(found, _)| found.starts_with(id))?;
        let other = after.next().is_some_and(|(other, _)| other.starts_with(id));
        (!id.is_empty() && (found == id || !other)).then_some((found.as_str(), response))
    }

    /// Drops the statuses of objects that are not worth keeping; true if there were any.
    pub(super) fn keep_statuses(&mut self, kind: Kind, keep: impl Fn(&str) -> bool) -> bool {
        let statuses = &mut self.statuses[kind.index()];
        let before = statuses.len();
        statuses.retain(|id, _| keep(id));
        statuses.len() != before
    }

    /// All statuses of one kind, for their file.
    pub(super) fn statuses(&self, kind: Kind) -> Statuses {
        let entry = |(id, response): (&String, &Bytes)| Status {
            id: id.clone(),
            response: response.clone(),
        };
        Statuses {
            entries: self.statuses[kind.index()].iter().map(entry).collect(),
        }
    }
}
