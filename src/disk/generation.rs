//! The VM generation ID: by which a guest finds out that its disk is another one, or an earlier one, than it knows.
//!
//! Invariant: it is recorded before a guest sees it, and stays for as long as the content of the disk follows from what
//! that guest wrote: over reboots, and over memory that is saved. A clone has none of its source; a revert ends it.
//! Failure: the database's own; the machine does not start then.

use podspec::VmUid;
use uuid::Uuid;

use super::Disks;
use super::error::{Error, Result};

impl Disks {
    /// The ID that the next guest of a disk sees.
    pub async fn generation(&self, vm: VmUid) -> Result<Uuid> {
        if let Some(known) = self.known(vm)?.generation {
            return Ok(known);
        }
        let mut recorded = Uuid::new_v4();
        let set = self.records.change(&vm, |disk| {
            recorded = *disk.generation.get_or_insert(recorded);
            true
        });
        set.await?.ok_or(Error::Missing(vm))?;
        Ok(recorded)
    }
}
