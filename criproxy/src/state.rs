//! The stored state of the backends: the owner of each object, and the last lists and statuses of
//! each.
//!
//! Invariant: what a secondary has once owned is either answered as it was last known, or is
//! [`LastKnown::Lost`]; it never looks empty. A state is rewritten for a reboot before any request
//! can read it.
//! Failure: only [`Memory::open`] can fail, when there is no directory to work in. A file that
//! cannot be understood counts as lost; one that cannot be written is logged and tried again, and
//! memory continues serving.

mod breaker;
mod cache;
mod entries;
mod files;
mod load;
mod memory;
mod owners;
mod reboot;
mod wire;
mod writer;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

pub use breaker::{Breaker, BreakerState, Permit, Refused};
pub use memory::Memory;

/// A backend by its place in the configuration; 0 is the primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BackendIndex(pub usize);

impl BackendIndex {
    /// The backend that owns all objects that no other backend claims.
    pub const PRIMARY: Self = Self(0);
}

/// The kinds of object that have an owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Pod sandboxes.
    Sandbox,
    /// Containers.
    Container,
    /// Images, by id, tag or digest.
    Image,
}

impl Kind {
    /// Each of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Sandbox, Self::Container, Self::Image];

    const fn index(self) -> usize {
        match self {
            Self::Sandbox => 0,
            Self::Container => 1,
            Self::Image => 2,
        }
    }
}

/// Who owns an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This backend and no other.
    One(BackendIndex),
    /// More than one backend has an object of that id, or objects whose ids begin like that.
    ///
    /// For a sandbox or container the caller has to be more precise. For an image it is no error:
    /// several backends may hold the same one, and each has to be asked.
    Ambiguous,
    /// No known owner.
    Unknown,
}

/// What is known of a backend's objects while it cannot be queried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LastKnown {
    /// It has never answered: it is not installed yet, and owns nothing.
    NeverConnected,
    /// Its last complete list was empty.
    OwnedNothing,
    /// It has answered once, and what it owned is not known. Only an error is a valid answer.
    Lost,
    /// Its last complete list: a serialized `ListPodSandboxResponse`, `ListContainersResponse` or
    /// `ListImagesResponse`.
    Known(Bytes),
}

impl LastKnown {
    /// The number of objects in it; `None` when it is unknown.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::NeverConnected | Self::OwnedNothing => Some(0),
            Self::Lost => None,
            Self::Known(list) => Some(entries::count(list)),
        }
    }
}

/// What a state directory remembers of a secondary, in the order of [`Kind::ALL`]. Blocks; changes
/// nothing, so that it may be called while a proxy works there.
pub fn recall(dir: &Path, name: &str) -> [LastKnown; 3] {
    let cache = load::peek(dir, name);
    Kind::ALL.map(|kind| cache.last_list(kind))
}

/// What has to be known of a backend to remember things of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSpec {
    /// Its name, 1 to 63 of `[A-Za-z0-9._-]`, beginning with a letter or digit; names its
    /// directory.
    pub name: String,
    /// How the full ids of its sandboxes and containers end.
    pub id_suffix: Option<String>,
}

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A backend's name cannot name a directory.
    #[error("{0:?} is no name for a backend: 1 to 63 of letters, digits, '.', '_' and '-'")]
    Name(String),
    /// Two backends have one name.
    #[error("two backends are named {0}")]
    SameName(String),
    /// The directory cannot be made.
    #[error("make directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// There is no thread that could write.
    #[error("start the writer of the state directory")]
    Writer(#[source] io::Error),
}
