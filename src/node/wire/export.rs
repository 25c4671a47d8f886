//! Requests for exports.
//!
//! Invariant: what a client has received comes with its digest.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::VmUid;

use super::super::exports::Received;
use super::{Invalid, uid};
use crate::images::Digest;

/// The disk that a client wants, and what it has of it.
pub(in crate::node) fn export(
    request: &v1::ExportDiskRequest,
) -> Result<(VmUid, Option<Received>), Invalid> {
    let vm = uid("vm_uid", &request.vm_uid)?;
    let bytes = request.received_bytes;
    if bytes == 0 {
        return Ok((vm, None));
    }
    let digest = Digest::from_hex(&request.received_sha256).map_err(|_| Invalid {
        field: "received_sha256",
        reason: "64 lower-case hexadecimal digits are needed with received_bytes",
    })?;
    Ok((vm, Some(Received { bytes, digest })))
}
