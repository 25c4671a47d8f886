//! Requests for exports.
//!
//! Invariant: what a client has received comes with its digest.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;

use super::super::exports::{DiskState, Received, Requested, Source};
use super::{Invalid, backups, uid};
use crate::images::Digest;

/// The disk that a client requests, and what it has of it.
pub(in crate::node) fn export(
    request: &v1::ExportDiskRequest,
) -> Result<(Requested, Option<Received>), Invalid> {
    let requested = Requested::Disk(uid("vm_uid", &request.vm_uid)?);
    let received = received(request.received_bytes, &request.received_sha256)?;
    Ok((requested, received))
}

/// The snapshot that a client requests, and what it has of it.
pub(in crate::node) fn export_snapshot(
    request: &v1::ExportSnapshotRequest,
) -> Result<(Requested, Option<Received>), Invalid> {
    let vm = uid("vm_uid", &request.vm_uid)?;
    let requested = Requested::Snapshot(vm, uid("snapshot_uid", &request.snapshot_uid)?);
    let received = received(request.received_bytes, &request.received_sha256)?;
    Ok((requested, received))
}

/// The backup that a client requests, and what it has of it.
pub(in crate::node) fn export_backup(
    request: &v1::ExportBackupRequest,
) -> Result<(Requested, Option<Received>), Invalid> {
    let vm = uid("vm_uid", &request.vm_uid)?;
    let requested = Requested::Backup(vm, backups::exported(request)?);
    let received = received(request.received_bytes, &request.received_sha256)?;
    Ok((requested, received))
}

/// The export that a client has all of.
pub(in crate::node) fn complete_export(
    request: &v1::ForgetExportRequest,
) -> Result<Source, Invalid> {
    let vm = uid("vm_uid", &request.vm_uid)?;
    let state = match (request.snapshot_uid.as_str(), request.backup_uid.as_str()) {
        ("", "") => DiskState::Present,
        (snapshot, "") => DiskState::Snapshot(uid("snapshot_uid", snapshot)?),
        ("", backup) => DiskState::Backup(uid("backup_uid", backup)?),
        _ => {
            let reason = "a snapshot or a backup is possible, and not both";
            return Err(Invalid {
                field: "backup_uid",
                reason,
            });
        }
    };
    Ok(Source { vm, state })
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
