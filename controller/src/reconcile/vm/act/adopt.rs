//! Takes over the disk of an earlier machine of the same namespace and name.
//!
//! ```text
//! annotation of a privileged user + record ─► Adopt task: is it that machine's, and free? ─► recorded, Created
//! ```
//!
//! Invariant: the record is a claim, no matter who wrote it: nothing follows from it before the node has confirmed that
//! the disk is of a machine of this namespace and name, of which the API server allows one. No disk is
//! made for a machine that is to take one over, and none is changed before it is recorded as the machine's.
//! Failure: `VirtualMachineCreated` is False with the reason, and the pass is repeated; a machine that is deleted
//! before leaves the disk where it is.

use crds::backup::DiskRecord;
use crds::conditions::{self, Status};
use crds::{PowerState, TaskKind, names};
use kube::ResourceExt;

use super::tasks::{self, Progress};
use super::{backup, create, handover, provision};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::answers::again;
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::view;
use crate::reconcile::vm::pass::Pass;

/// Whether the machine is to take a disk over, and nothing was made for it yet.
pub(crate) fn is_wanted(pass: &Pass<'_>) -> bool {
    let is_open = !pass.is_created() && pass.root_claim().is_none();
    is_open && pass.has(names::ADOPT_DISK) && provision::task(pass).is_none()
}

/// The record of the disk to take over, if it is one.
pub(crate) fn record(pass: &Pass<'_>) -> Option<DiskRecord> {
    let text = pass.vm.annotations().get(names::DISK_RECORD);
    let text = text.filter(|_| is_wanted(pass))?;
    DiskRecord::from_json(text).ok()
}

/// One step on the way to a disk that the machine takes over.
pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let record = checked(pass)?;
    let words = format!(
        "the machine takes over disk {} of node {}",
        record.disk, record.node
    );
    let kind = conditions::BACKUP_UP_TO_DATE;
    pass.condition(kind, Status::False, backup::PAUSED, &words);
    // It was made before the machine was to take a disk over.
    handover::clean_up(pass).await?;
    if let Some(task) = tasks::adoption(pass)
        && (task.spec.vm_uid != record.disk || task.spec.node_name != record.node)
    {
        tasks::delete(pass, &task).await?;
        return Err(again());
    }
    let mut spec = tasks::spec(pass, &record.node, TaskKind::Adopt);
    spec.vm_uid.clone_from(&record.disk);
    let uid = pass.uid();
    match tasks::ensure(pass, spec, &uid).await? {
        Progress::Running => Ok(Flow::Waiting(words)),
        Progress::Done => {
            take(pass, record);
            create::done(pass)
        }
        Progress::Removed => Ok(Flow::RequeueAfter(tasks::NEXT)),
        Progress::Cancelled => {
            if let Some(task) = tasks::adoption(pass) {
                tasks::delete(pass, &task).await?;
            }
            Err(again())
        }
    }
}

/// The record, if its node can be asked.
fn checked(pass: &Pass<'_>) -> Result<DiskRecord, PassError> {
    let refuse = |text: String| PassError::from(Error::Unwatched(text));
    let text = pass.vm.annotations().get(names::DISK_RECORD);
    let text = text.ok_or_else(|| {
        refuse(format!(
            "{} names no disk without {}: remove the former for a new disk",
            names::ADOPT_DISK,
            names::DISK_RECORD
        ))
    })?;
    let record = DiskRecord::from_json(text)
        .map_err(|error| refuse(format!("{}: {error}", names::DISK_RECORD)))?;
    let node = &record.node;
    if view::node(pass, node).is_none() {
        return Err(refuse(format!(
            "node {node}, which has the disk to take over, does not exist"
        )));
    }
    let agents = &pass.ctx.stores.agents;
    if !agents.has(node, names::MACHINE_BACKUP) || !agents.lives(node) {
        return Err(refuse(format!(
            "node {node}, which has the disk to take over, has no agent and daemon that run and can hand it over: \
             check the pods of Vmlet there, or upgrade them"
        )));
    }
    let own = pass.uid();
    let machines = pass.ctx.stores.vms.state();
    let holder = machines.iter().find(|vm| {
        let adopted = vm.status.as_ref().and_then(|s| s.disk_uid.as_deref());
        let has_disk = adopted == Some(&record.disk)
            || adopted.is_none() && vm.metadata.uid.as_deref() == Some(&record.disk);
        has_disk && vm.metadata.uid.as_deref() != Some(&own)
    });
    match holder {
        Some(vm) => {
            let namespace = vm.namespace().unwrap_or_default();
            Err(refuse(format!(
                "disk {} is that of machine {namespace}/{}",
                record.disk,
                vm.name_any()
            )))
        }
        None => Ok(record),
    }
}

/// Records the disk as the machine's, with what its guest knows it by.
fn take(pass: &mut Pass<'_>, record: DiskRecord) {
    let own = pass.uid();
    let status = pass.status();
    status.disk_uid = Some(record.disk).filter(|disk| *disk != own);
    status.node_name = Some(record.node);
    status.image = record.image;
    status.image_url = record.image_url;
    status.machine_type = record.machine_type;
    if record.suspended {
        status.power_state = Some(PowerState::Suspended);
    }
    provision::has_place_and_image(pass);
    pass.vm.annotations_mut().remove(names::ADOPT_DISK);
    tracing::info!(vm = %pass.key, disk = pass.disk_uid(), "disk of an earlier machine adopted");
}
