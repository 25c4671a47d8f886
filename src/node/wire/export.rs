//! Requests for exports.
//!
//! Invariant: what a client has received comes with its digest.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;

use super::super::exports::{Received, Source};
use super::{Invalid, uid};
use crate::images::Digest;

/// The disk that a client requests, and what it has of it.
pub(in crate::node) fn export(
    request: &v1::ExportDiskRequest,
) -> Result<(Source, Option<Received>), Invalid> {
    let source = Source {
        vm: uid("vm_uid", &request.vm_uid)?,
        snapshot: None,
    };
    let received = received(request.received_bytes, &request.received_sha256)?;
    Ok((source, received))
}

/// The snapshot that a client requests, and what it has of it.
pub(in crate::node) fn export_snapshot(
    request: &v1::ExportSnapshotRequest,
) -> Result<(Source, Option<Received>), Invalid> {
    let source = Source {
        vm: uid("vm_uid", &request.vm_uid)?,
        snapshot: Some(uid("snapshot_uid", &request.snapshot_uid)?),
    };
    let received = received(request.received_bytes, &request.received_sha256)?;
    Ok((source, received))
}

/// The export that a client has all of.
pub(in crate::node) fn complete_export(
    request: &v1::ForgetExportRequest,
) -> Result<Source, Invalid> {
    let snapshot = Some(request.snapshot_uid.as_str()).filter(|uid| !uid.is_empty());
    let snapshot = snapshot.map(|snapshot| uid("snapshot_uid", snapshot));
    Ok(Source {
        vm: uid("vm_uid", &request.vm_uid)?,
        snapshot: snapshot.transpose()?,
    })
}

fn received(bytes: u64, sha256: &str) -> Result<Option<Received>, Invalid> {
    if bytes == 0 {
        return Ok(None);
    }
    let digest = Digest::from_hex(sha256).map_err(|_| Invalid {
        field: "received_sha256",
        reason: "64 lower-case hexadecimal digits are needed with received_bytes",
    })?;
    Ok(Some(Received { bytes, digest }))
}
