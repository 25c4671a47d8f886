//! Shared directories, and who else has the memory of a guest: the processes of these, and no other guest.
//!
//! Invariant: only a machine with shares has memory that another process can map, by a descriptor
//! that QEMU hands over.
//! Failure: a path that is not UTF-8.

use serde::Serialize;

use super::{Result, Switch, text};
use crate::vm::domain::{DomainSpec, Share};

/// Length of the queue, in requests.
const QUEUE: u16 = 1024;

/// `memoryBacking`
#[derive(Debug, Serialize)]
pub(super) struct MemoryBacking {
    /// The time of a write shows no guest what another one has in memory.
    #[serde(rename = "nosharepages", skip_serializing_if = "Option::is_none")]
    unmerged: Option<Switch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<MemorySource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<MemoryAccess>,
}

#[derive(Debug, Serialize)]
struct MemorySource {
    #[serde(rename = "@type")]
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct MemoryAccess {
    #[serde(rename = "@mode")]
    mode: &'static str,
}

/// `filesystem`
#[derive(Debug, Serialize)]
pub(super) struct Filesystem {
    #[serde(rename = "@type")]
    kind: &'static str,
    driver: Driver,
    source: Source,
    target: Target,
}

#[derive(Debug, Serialize)]
struct Driver {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@queue")]
    queue: u16,
}

#[derive(Debug, Serialize)]
struct Source {
    #[serde(rename = "@socket")]
    socket: String,
}

#[derive(Debug, Serialize)]
struct Target {
    #[serde(rename = "@dir")]
    tag: String,
}

impl MemoryBacking {
    /// `None` for a machine without shares whose pages may be merged.
    pub(super) fn new(spec: &DomainSpec) -> Option<Self> {
        let has_shares = !spec.shares.is_empty();
        let is_empty = spec.mergeable && !has_shares;
        (!is_empty).then(|| Self {
            unmerged: (!spec.mergeable).then(Switch::default),
            source: has_shares.then_some(MemorySource { kind: "memfd" }),
            access: has_shares.then_some(MemoryAccess { mode: "shared" }),
        })
    }
}

/// All shares, in order.
pub(super) fn all(shares: &[Share]) -> Result<Vec<Filesystem>> {
    let one = |share: &Share| {
        Ok(Filesystem {
            kind: "mount",
            driver: Driver {
                kind: "virtiofs",
                queue: QUEUE,
            },
            source: Source {
                socket: text(&share.socket)?,
            },
            target: Target {
                tag: share.tag.clone(),
            },
        })
    };
    shares.iter().map(one).collect()
}
