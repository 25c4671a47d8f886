//! One pass over one backup of a machine.
//!
//! ```text
//! open?      ─► gates ─► finalizer ─► status with disk, node and manifest ─► Backup ─► sizes, parent ─► Completed
//! completed? ─► verification requested? ─► VerifyBackup ─► Verified
//!              (in a claim: a pod that has it mounted on the node comes before each task, and goes after it)
//! deleted?   ─► its tasks end ─► no later backup builds upon it ─► DeleteBackup ─► finalizer removed
//! ```
//!
//! Invariant: only passes over a backup write it, but for one mark (`base.rs`). Disk and node are on record, and the finalizer is there, before a task
//! is: what a target may have has an object until a node has deleted it, or the object says that it is retained. One
//! backup of a machine is made at a time. Tasks belong to the backup, and name it by its UID.
//! Failure: shows in the conditions of the backup; what may pass is repeated with a growing delay. The machine is never
//! affected.

mod base;
pub(crate) mod claim;
mod delete;
mod gates;
mod health;
mod kept;
mod make;
mod node;
mod pass;
mod place;
mod result;
mod task;
mod verify;
mod write;

use crds::VirtualMachineBackup;

use self::pass::Pass;
use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome};

pub(crate) use self::health::{Health, ancestors, health};
pub(crate) use self::kept::{Kept, kept};
pub(crate) use self::node::{Reach, reach};
pub(crate) use self::place::name as place_name;
pub(crate) use self::write::apply_status;

/// One pass.
///
/// # Errors
///
/// What the API server reports of a write; see [`crate::flow::PassError`].
pub async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(found) = ctx.stores.backups.get(&key.reference()) else {
        // Its tasks have it as their owner: Kubernetes deletes them.
        return Ok(Flow::Continue);
    };
    let mut pass = Pass::new(ctx, key, &found);
    if found.metadata.deletion_timestamp.is_some() {
        delete::run(&mut pass).await?;
    } else {
        if found.is_open() {
            make::run(&mut pass).await?;
        }
        // As it is by now: its own writes do not wake it.
        if pass.backup.is_completed() {
            verify::run(&mut pass).await?;
            place::serve(&mut pass).await?;
        }
        if !pass.backup.is_open() {
            task::sweep(&mut pass).await?;
        }
    }
    place::leave(&pass).await?;
    Ok(pass.again.map_or(Flow::Continue, Flow::RequeueAfter))
}

/// Whether the backup waits for what a node can do.
pub(crate) fn needs_node(backup: &VirtualMachineBackup) -> bool {
    let is_leaving = backup.metadata.deletion_timestamp.is_some();
    is_leaving || backup.is_open() || verify::is_due(backup)
}
