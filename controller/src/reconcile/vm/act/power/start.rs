//! Starts a machine: creates its pod.
//!
//! Invariant: the pod has the machine's own name, so that the API server allows one at most; it is
//! bound to the node of the root disk.
//! Failure: what is missing is named, and nothing is created.

use std::sync::Arc;

use crds::{PowerState, VirtualMachine, names};
use kube::ResourceExt;

use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::act::pod;
use crate::reconcile::vm::act::pod::Plan;
use crate::reconcile::vm::act::{config, effects, handover, identity, schema};
use crate::reconcile::vm::error::{Error, is_over_quota};
use crate::reconcile::vm::observe::{find, group, root_disk, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites;
use crate::reconcile::vm::prerequisites::Prerequisites;
use crate::reconcile::vm::write::patch;

pub(super) async fn run(pass: &mut Pass<'_>, paused: bool, restore: bool) -> Outcome {
    let from = pass.seen().and_then(|status| status.power_state);
    let mut prerequisites = prerequisites::all(pass).await?;
    take_recorded_size(pass, &mut prerequisites);
    let has_claim = pass.root_claim().is_some();
    let node = pass.node_name();
    if !has_claim && node.is_none() {
        return Err(Error::NoNode.into());
    }
    // Saved memory returns to the firmware that it was saved with.
    if !restore {
        config::is_booted_there(pass)?;
    }
    let (bios, instance) = identity::recorded(pass);
    let uid = pass.uid();
    let disk = pass.disk_uid();
    let recorded = pass.seen().and_then(|s| s.machine_type.clone());
    let machine_type = recorded.or_else(|| prerequisites.size.machine_type.clone());
    let placeholder = find::placeholder(pass);
    let placeholder = placeholder.filter(|pod| {
        let node = node.as_deref();
        node.is_some_and(|node| handover::holds(pod, node))
    });
    let grouping = group::grouping(pass);
    let plan = Plan {
        vm: &pass.vm,
        uid: &uid,
        owner: pass.owner(),
        prerequisites: &prerequisites,
        node: node.as_deref().filter(|_| !has_claim || restore),
        avoid: &[],
        prefer: &[],
        grouping: grouping.as_ref(),
        disk: Some(disk.as_str()).filter(|_| !has_claim),
        disk_request: root_disk::request(pass),
        instance_uuid: &instance,
        bios_uuid: &bios,
        machine_type: machine_type.as_deref(),
        grace_seconds: lifecycle::power::power_off_seconds(&pass.vm.spec),
        paused,
        restore,
        is_gated: placeholder.is_some(),
    };
    let pod = pod::instance(&plan);
    if !is_on_record(pass) {
        patch::status(pass).await?;
    }
    let made = match (effects::create(pass, &pod).await, &placeholder) {
        (Err(PassError::Failed(error)), Some(placeholder)) if is_over_quota(&error) => {
            // The quota has room for one pod of the machine only.
            handover::give_up(pass, placeholder).await?;
            return Err(PassError::Failed(error));
        }
        (made, _) => Arc::new(made?),
    };
    let volumes = pass.view.preconditions.volumes;
    view::observe(pass, Some(Arc::clone(&made)), volumes);
    view::decide(pass);
    // A request is fulfilled only when the watch shows the pod.
    pass.writes.pops_request = false;
    let annotations = pass.vm.annotations_mut();
    annotations.insert(names::FIRST_BOOT_DONE.to_owned(), "true".to_owned());
    schema::fill(pass);
    if let Some(placeholder) = placeholder {
        handover::hand_over(pass, &placeholder, &made).await?;
    }
    Ok(Flow::Done(match from {
        Some(PowerState::Suspended) => "power state: from Suspended to PoweredOn",
        _ => "power state: from PoweredOff to PoweredOn",
    }))
}

/// What the pod is built from is in the status that was read.
fn is_on_record(pass: &Pass<'_>) -> bool {
    let built_from = |vm: &VirtualMachine| {
        let status = vm.status.clone().unwrap_or_default();
        let uuids = (status.bios_uuid, status.instance_uuid);
        let size = (status.class_revision, status.hardware, status.machine_type);
        (uuids, size, status.node_name)
    };
    built_from(&pass.base) == built_from(&pass.vm)
}

/// A machine has the size that it took over last, with all that comes with it, until it takes over
/// another one.
fn take_recorded_size(pass: &Pass<'_>, prerequisites: &mut Prerequisites) {
    let Some(status) = pass.seen() else {
        return;
    };
    let current = prerequisites
        .size
        .class
        .as_ref()
        .map(|(_, revision)| revision);
    if current.is_some() && current == status.class_revision.as_ref() {
        return;
    }
    let class = status.class.clone().zip(status.class_revision.clone());
    let spec = status.class_spec.clone();
    let spec = spec.and_then(|spec| serde_json::from_value(spec).ok());
    if let Some((class, spec)) = class.zip(spec) {
        prerequisites.size = prerequisites::of_class(&spec, class);
    } else if let Some(hardware) = &status.hardware {
        prerequisites.size.cpus = hardware.cpus;
        if let Some(memory) = &hardware.memory {
            prerequisites.size.memory = memory.clone();
        }
    }
}
