//! Detects a reboot of the node since the last start.
//!
//! Invariant: a boot is recorded after its consequences, and before anything is served. It is
//! recorded also when one of them fails: repeated at the next start in the same boot, they would end
//! machines that run by then.
//! Failure: a node that does not say which boot this is counts as not rebooted; reconciliation
//! finds what no longer exists, only later.

use std::path::Path;

use service::boot_id;

use super::{App, Error};
use crate::metadata::Db;
use crate::metadata::node;

/// Longest id that is believed; the kernel's has 36 characters.
const LONGEST: usize = 128;

impl App {
    /// Draws the consequences of a reboot, if there was one.
    pub(super) async fn settle_boot(&self, db: &Db, file: &Path) -> Result<(), Error> {
        let Some(now) = read(file) else {
            tracing::warn!(file = %file.display(), "boot ID not available");
            return Ok(());
        };
        let before = node::boot(db).await?;
        if before.as_ref() == Some(&now) {
            return Ok(());
        }
        if before.is_some() {
            self.sandboxes.after_reboot().await;
            self.containers.after_reboot().await;
        }
        Ok(node::set_boot(db, now).await?)
    }
}

pub(super) fn read(file: &Path) -> Option<String> {
    let id = boot_id::read(file).ok()?;
    (!id.is_empty() && id.len() <= LONGEST).then_some(id)
}
