//! Detects a reboot of the node since the last start.
//!
//! Invariant: a boot is recorded after its consequences, and before anything is served.
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
            let sandboxes = self.sandboxes.after_reboot().await;
            sandboxes.map_err(|e| Error::LostSandboxes(Box::new(e)))?;
            let containers = self.containers.after_reboot().await;
            containers.map_err(|e| Error::LostContainers(Box::new(e)))?;
        }
        Ok(node::set_boot(db, now).await?)
    }
}

pub(super) fn read(file: &Path) -> Option<String> {
    let id = boot_id::read(file).ok()?;
    (!id.is_empty() && id.len() <= LONGEST).then_some(id)
}
