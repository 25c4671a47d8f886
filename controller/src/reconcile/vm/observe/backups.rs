//! The backups of the disk of a machine.
//!
//! Invariant: a backup counts for the disk that it was requested for: one of an earlier machine of the same name is
//! none of this machine's.
//! Failure: none.

use crate::reconcile::backup::{Kept, kept};
use crate::reconcile::vm::pass::Pass;

/// Whether the node keeps this for a backup of the disk, as far as its objects show.
pub(crate) fn has_any(pass: &Pass<'_>, wanted: Kept) -> bool {
    let disk = pass.disk_uid();
    let all = pass.ctx.stores.backups_of(pass.key);
    all.iter().any(|backup| {
        let status = backup.status.as_ref();
        let recorded = status.and_then(|status| status.disk_uid.as_deref());
        recorded == Some(disk.as_str()) && kept(backup) == Some(wanted)
    })
}
