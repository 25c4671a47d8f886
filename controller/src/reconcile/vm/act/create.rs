//! Creates the root disk of a new machine.
//!
//! Invariant: no pass waits for a copy; the task that makes the disk is the only record that one is
//! being made.
//! Failure: `VirtualMachineCreated` is False with the reason, and the pass is repeated.

use crds::conditions::{self, Status};
use crds::vm::ProviderStatus;
use crds::{PowerState, VirtualMachineTask};
use lifecycle::Volumes;

use super::{adopt, clone, config, handover, identity, provision, slot};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::error;
use crate::reconcile::vm::observe::{find, group, location, root_disk, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, unsupported};

/// One step towards the root disk.
pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let placeholder = find::placeholder(pass);
    let volumes = match &placeholder {
        Some(_) => disks_of_new(pass),
        None => Volumes::Provisioning,
    };
    view::observe(pass, None, volumes);
    if let Some(pod) = placeholder {
        view::look_at_placeholder(pass, &pod);
    }
    view::decide(pass);
    let result = steps(pass).await;
    match &result {
        Err(PassError::Failed(error)) => {
            let message = error::text(error);
            pass.condition(conditions::CREATED, Status::False, "Error", &message);
        }
        // The last failure is over.
        _ if !pass.is_created() => pass.drop_condition(conditions::CREATED),
        _ => {}
    }
    result
}

/// The disks of a machine whose root disk is being made. A claim that does not exist, and that nothing makes,
/// keeps the placeholder from a node: the scheduler reports no more than that.
fn disks_of_new(pass: &Pass<'_>) -> Volumes {
    let status = pass.vm.status.clone().unwrap_or_default();
    let wanted = lifecycle::desired_power_state(&pass.vm.spec, &status, None);
    let is_missing = prerequisites::foreign_claim_is_missing(pass);
    match wanted {
        Ok(PowerState::PoweredOn) if is_missing => Volumes::ClaimNotFound,
        _ => Volumes::Provisioning,
    }
}

async fn steps(pass: &mut Pass<'_>) -> Outcome {
    if adopt::is_wanted(pass) {
        return adopt::run(pass).await;
    }
    let task = provision::task(pass);
    if let Some(task) = task.as_ref().filter(|t| !t.is_final()) {
        location::while_making(pass, &task.spec.node_name);
        provision::has_place_and_image(pass);
        if clone::is_wanted(pass) {
            clone::follow(pass, task);
        }
        return Ok(slot::is_being_made(pass));
    }
    if let Some(task) = task.filter(|t| succeeded(t)) {
        let status = pass.status();
        status.image.clone_from(&task.spec.image);
        status.image_url.clone_from(&task.spec.image_url);
        provision::has_place_and_image(pass);
        clone::leave_claim(pass).await?;
        return done(pass);
    }
    if let Some(why) = group::holds_disk(pass) {
        return Ok(Flow::Waiting(why));
    }
    if clone::is_wanted(pass) {
        return clone::run(pass).await;
    }
    if pass.root_claim().is_none() && provision::waits_on_node(pass) {
        // It needs a slot only once its node has the image.
        unsupported::run(pass, None);
        let prerequisites = prerequisites::all(pass).await?;
        prerequisites::disks(pass).await?;
        return provision::run(pass, &prerequisites, None).await;
    }
    let node = provision::next_node(pass);
    // No node makes a disk in a claim, so that it needs no slot.
    let slot = match pass.root_claim() {
        None => match slot::take_slot(pass, node.as_deref()) {
            Some(slot) => Some(slot),
            None => {
                provision::follow(pass).await?;
                return Ok(slot::no_slot(pass));
            }
        },
        Some(_) => None,
    };
    unsupported::run(pass, None);
    let prerequisites = prerequisites::all(pass).await?;
    prerequisites::disks(pass).await?;
    let Some(slot) = slot else {
        // It was made before the root disk became one in a claim, and holds no place.
        handover::clean_up(pass).await?;
        return done(pass);
    };
    provision::run(pass, &prerequisites, Some(slot)).await
}

fn succeeded(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|s| s.state);
    state == Some(crds::TaskState::Success)
}

/// The root disk is there. What becomes of the placeholder depends on whether the machine is to be
/// on.
pub(super) fn done(pass: &mut Pass<'_>) -> Outcome {
    exists(pass);
    clone::forget_source(pass);
    config::first_size(pass)?;
    pass.count_change();
    Ok(Flow::Done("created"))
}

/// Records that the machine exists.
pub(crate) fn exists(pass: &mut Pass<'_>) {
    pass.condition(conditions::CREATED, Status::True, "", "");
    root_disk::record(pass);
    let (_, uuid) = identity::recorded(pass);
    let node = pass.node_name().filter(|_| pass.root_claim().is_none());
    let place = node.unwrap_or_else(|| "pvc".to_owned());
    let now = pass.now.clone();
    let status = pass.status();
    status.unique_id = Some(format!("{place}/{uuid}"));
    let provider = status.provider.get_or_insert_with(ProviderStatus::default);
    provider.creation_timestamp.get_or_insert(now);
}
