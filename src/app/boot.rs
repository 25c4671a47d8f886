//! Detects a reboot of the node since the last start.
//!
//! Invariant: a boot is recorded after its consequences, and before anything is served. It is
//! recorded also when one of them fails: repeated at the next start in the same boot, they would end
//! machines that run by then.
//! Failure: a node that does not say which boot this is counts as not rebooted, and so does one whose
//! record is no boot ID; reconciliation finds what no longer exists, only later.

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
        match Before::compare(before.as_deref(), &now) {
            Before::Same => return Ok(()),
            Before::Nothing => {}
            Before::Other => {
                self.sandboxes.after_reboot().await;
                self.containers.after_reboot().await;
            }
            Before::Unreadable => {
                tracing::error!(table = "node", key = "boot", value = ?before, "unreadable record replaced");
            }
        }
        Ok(node::set_boot(db, now).await?)
    }
}

/// What is recorded of the boot before.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    /// It is this one.
    Same,
    /// There was none.
    Nothing,
    /// The node was rebooted.
    Other,
    /// It is no boot ID, and says nothing.
    Unreadable,
}

impl Before {
    fn compare(before: Option<&str>, now: &str) -> Self {
        let is_uuid = |id: &str| uuid::Uuid::try_parse(id).is_ok();
        match before {
            None => Self::Nothing,
            Some(before) if before == now => Self::Same,
            Some(before) if is_uuid(now) && !is_uuid(before) => Self::Unreadable,
            Some(_) => Self::Other,
        }
    }
}

pub(super) fn read(file: &Path) -> Option<String> {
    let id = boot_id::read(file).ok()?;
    (!id.is_empty() && id.len() <= LONGEST).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::Before;

    const NOW: &str = "0a1b2c3d-0000-4000-8000-000000000001";

    #[test]
    fn a_record_that_is_no_boot_id_is_no_reboot() {
        assert_eq!(
            Before::compare(Some("0a1b2c3d-0000-4\u{fffd}"), NOW),
            Before::Unreadable
        );
        assert_eq!(Before::compare(Some(""), NOW), Before::Unreadable);
        let other = "0a1b2c3d-0000-4000-8000-000000000002";
        assert_eq!(Before::compare(Some(other), NOW), Before::Other);
        assert_eq!(Before::compare(Some(NOW), NOW), Before::Same);
        assert_eq!(Before::compare(None, NOW), Before::Nothing);
        // A node that has boot IDs of another form.
        assert_eq!(Before::compare(Some("one"), "two"), Before::Other);
    }
}
