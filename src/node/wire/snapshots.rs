//! Conversions of snapshots.
//!
//! Invariant: a UID that comes out of a request is one, and a time is bounded.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;

use super::{Invalid, MILLI, uid};
use crate::disk::{Disk, TakenSnapshot};
use crate::node::task::Work;

/// Longest time for which a guest freezes its file systems, in seconds.
const QUIESCE: u32 = 600;

/// The work of a request to take a snapshot.
pub(super) fn take(requested: &v1::Snapshot) -> Result<Work, Invalid> {
    if requested.quiesce_seconds > QUIESCE {
        return Err(Invalid {
            field: "snapshot.quiesce_seconds",
            reason: "at most 600 are allowed",
        });
    }
    if requested.memory && requested.quiesce_seconds > 0 {
        return Err(Invalid {
            field: "snapshot.quiesce_seconds",
            reason: "file systems that are frozen in the memory of a snapshot stay frozen: it is 0 with memory",
        });
    }
    Ok(Work::Snapshot {
        snapshot: uid("snapshot.uid", &requested.uid)?,
        quiesce: requested.quiesce_seconds,
        memory: requested.memory,
    })
}

/// The work of a request to freeze a guest.
pub(super) fn freeze(requested: &v1::Freeze) -> Result<Work, Invalid> {
    if !(1..=QUIESCE).contains(&requested.seconds) {
        return Err(Invalid {
            field: "freeze.seconds",
            reason: "from 1 to 600 are allowed",
        });
    }
    Ok(Work::Freeze {
        snapshot: uid("freeze.uid", &requested.uid)?,
        seconds: requested.seconds,
    })
}

/// The work of a request to go back to a snapshot.
pub(super) fn revert(requested: &v1::Revert) -> Result<Work, Invalid> {
    let snapshot = uid("revert.uid", &requested.uid)?;
    let memory = requested.memory;
    Ok(Work::Revert { snapshot, memory })
}

/// The work of a request to delete a snapshot.
pub(super) fn delete(requested: &v1::DeleteSnapshot) -> Result<Work, Invalid> {
    let snapshot = uid("delete_snapshot.uid", &requested.uid)?;
    Ok(Work::DeleteSnapshot { snapshot })
}

/// The message of a snapshot.
pub(super) fn taken(snapshot: &TakenSnapshot) -> v1::DiskSnapshot {
    v1::DiskSnapshot {
        uid: snapshot.uid.to_string(),
        parent_uid: snapshot
            .parent
            .map(|uid| uid.to_string())
            .unwrap_or_default(),
        virtual_bytes: snapshot.virtual_bytes,
        used_bytes: snapshot.used_bytes,
        created_ms: snapshot.created_at / MILLI,
        quiesced: snapshot.quiesced,
        running: snapshot.running,
        memory_bytes: snapshot.memory_bytes,
    }
}

/// The snapshot that the guest's changes are based on; empty when there is none.
pub(super) fn current(disk: &Disk) -> String {
    let layers = disk.layers.as_ref();
    let current = layers.and_then(|layers| layers.parent_snapshot(layers.active()));
    current.map(|uid| uid.to_string()).unwrap_or_default()
}
