//! Shared directories, and the memory that their processes reach.
//!
//! Invariant: only a machine with shares has memory that another process can map, by a descriptor
//! that QEMU hands over.
//! Failure: a path that is not UTF-8.

use serde::Serialize;

use super::{Result, text};
use crate::vm::domain::Share;

/// Length of the queue, in requests.
const QUEUE: u16 = 1024;

/// `memoryBacking`
#[derive(Debug, Serialize)]
pub(super) struct MemoryBacking {
    source: MemorySource,
    access: MemoryAccess,
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
    /// `None` for a machine without shares.
    pub(super) fn new(shares: &[Share]) -> Option<Self> {
        (!shares.is_empty()).then_some(Self {
            source: MemorySource { kind: "memfd" },
            access: MemoryAccess { mode: "shared" },
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
