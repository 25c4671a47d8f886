//! Backups in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use crds::conditions::{BACKUP_COMPLETED, BACKUP_FAILED};

use super::super::world::{World, condition, is_deleting, name, uid};
use crate::reconcile::vm::tests::bench::{BACKUPS, VMS};

/// What objects show is what the target has, and nothing is on its way but what waits for a later backup to go.
pub(super) fn check(world: &World) -> Result<(), String> {
    let backups = world.all(BACKUPS);
    for backup in &backups {
        let completed = condition(backup, BACKUP_COMPLETED);
        let status = &backup["status"];
        if is_deleting(backup) {
            let nodes = world.look_at_nodes();
            let mut children = nodes.target.children(uid(backup));
            let is_needed = children.any(|child| backups.iter().any(|one| uid(one) == child));
            if !is_needed {
                return Err(format!("{} is still there: {status}", name(backup)));
            }
        } else if completed["status"] == "True" {
            let is_whole = world.look_at_nodes().target.is_whole(uid(backup));
            if !is_whole {
                return Err(format!("{} is not whole: {status}", name(backup)));
            }
        } else if completed["reason"] != BACKUP_FAILED {
            let machine = backup["spec"]["vmName"].as_str().unwrap_or_default();
            if world.get(VMS, machine).is_some() {
                return Err(format!("{} is not made: {status}", name(backup)));
            }
        }
    }
    Ok(())
}
