//! The desired size and virtual hardware of the machine.
//!
//! Invariant: a running machine keeps what it was started with, unless it has room for its edited
//! class; what it is started with is on record before.
//! Failure: an ordinary failure; a network that is not there yet is waited for.

use crds::conditions::{self, CLASS_CONFIGURATION_SYNCED, DATA_VOLUMES_READY, Status};
use crds::vm::{Firmware, HardwareStatus};
use crds::{VirtualMachine, names};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use lifecycle::{Action, Volumes};

use super::in_place::{self, Progress};
use super::tasks;
use crate::flow::{Flow, Outcome, proceed};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::machine_type::MachineType;
use crate::reconcile::vm::observe::{pods, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites;
use crate::reconcile::vm::prerequisites::Missing;

/// What is to become of the machine's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    /// It has what its class specifies.
    Equal,
    /// It takes over what its class specifies.
    Resize,
    /// It differs, and stays so; the reason is the condition's.
    Pending(&'static str),
}

pub(crate) async fn run(pass: &mut Pass<'_>, action: &Action) -> Outcome {
    sync_paused_label(pass);
    if is_standing_still(pass) {
        return Ok(Flow::Continue);
    }
    let is_on = pass.view.pod.as_deref().is_some_and(|p| !pods::is_over(p));
    // Saved memory fits the hardware that it was saved with, and no other.
    let is_on = is_on || is_saved(pass);
    let starts = matches!(action, Action::Create { .. });
    proceed!(min_machine_type(pass, is_on)?);
    if starts {
        proceed!(networks(pass).await);
    }
    let progress = if is_on && !is_saved(pass) {
        in_place::resize(pass).await?
    } else {
        Progress::None
    };
    // A machine that got its size while it runs has what it would start with.
    let keeps_size = is_on && progress != Progress::Done;
    let changed = size(pass, keeps_size, starts)?;
    if let Progress::Running(why) = &progress {
        let kind = CLASS_CONFIGURATION_SYNCED;
        pass.condition(kind, Status::False, "SameClassResize", why);
    }
    if let Action::Wait(lifecycle::Waiting::Volumes) = action {
        detached(pass)?;
    }
    if changed {
        pass.count_change();
        // A start continues with it at once.
        if !starts {
            return Ok(Flow::Done("reconfigured"));
        }
    }
    Ok(Flow::Continue)
}

/// Suspended, paused, or in the hands of a task: only what is always allowed is changed.
fn is_standing_still(pass: &Pass<'_>) -> bool {
    let is_resumed = pass.view.pod.is_none() && !wants_suspended(pass);
    is_saved(pass) && !is_resumed || is_admin_paused(pass) || tasks::live(pass).is_some()
}

fn is_saved(pass: &Pass<'_>) -> bool {
    pass.seen().and_then(|s| s.power_state) == Some(crds::PowerState::Suspended)
}

fn wants_suspended(pass: &Pass<'_>) -> bool {
    pass.vm.spec.power_state == Some(crds::PowerState::Suspended)
}

/// A user with the right to stop all machines paused the machine of the pass.
pub(crate) fn is_admin_paused(pass: &Pass<'_>) -> bool {
    is_paused_by_admin(&pass.vm)
}

/// A user with the right to stop all machines paused the machine.
pub(crate) fn is_paused_by_admin(vm: &VirtualMachine) -> bool {
    vm.annotations().contains_key(names::ADMIN_PAUSED)
        || vm.labels().contains_key(names::PAUSED_LABEL)
}

/// The label names who paused the machine; an administrator's part follows the annotation.
pub(crate) fn sync_paused_label(pass: &mut Pass<'_>) {
    let is_paused = pass.has(names::ADMIN_PAUSED);
    let labels = pass.vm.labels_mut();
    let wanted = match (
        labels.get(names::PAUSED_LABEL).map(String::as_str),
        is_paused,
    ) {
        (Some("devops" | "both"), true) => Some("both"),
        (_, true) => Some("admin"),
        (Some("both" | "devops"), false) => Some("devops"),
        (Some("admin"), false) | (None, false) => None,
        (Some(_), false) => return,
    };
    match wanted {
        Some(who) => {
            labels.insert(names::PAUSED_LABEL.to_owned(), who.to_owned());
        }
        None => {
            labels.remove(names::PAUSED_LABEL);
        }
    }
}

fn min_machine_type(pass: &mut Pass<'_>, is_on: bool) -> Outcome {
    let raised = raised_machine_type(pass)?;
    let Some(text) = raised.filter(|_| !is_on) else {
        return Ok(Flow::Continue);
    };
    is_on_node(pass, &text)?;
    pass.status().machine_type = Some(text);
    pass.count_change();
    Ok(Flow::Done("upgraded the machine type"))
}

/// The machine type that the next start raises the machine to. Never lowered; what was never started yet
/// is started with the least.
fn raised_machine_type(pass: &Pass<'_>) -> Outcome<Option<String>> {
    let Some(text) = pass.vm.spec.min_machine_type.clone() else {
        return Ok(None);
    };
    let Some(least) = MachineType::parse(&text) else {
        let why = format!("{text} is no versioned machine type such as pc-q35-7.2");
        return Err(Error::MachineType(why).into());
    };
    let now = pass.seen().and_then(|s| s.machine_type.as_deref());
    let now = now.and_then(MachineType::parse);
    let has_it = now.is_some_and(|now| !now.is_below(&least));
    Ok(Some(text).filter(|_| !has_it))
}

/// A node that could take the machine has that machine type.
fn is_on_node(pass: &Pass<'_>, text: &str) -> Outcome<()> {
    let node = pass.node_name();
    let Some(newest) = pass.ctx.stores.agents.lacks(node.as_deref(), text) else {
        return Ok(());
    };
    let why = match node {
        Some(node) => format!("node {node} does not have {text}; its newest is {newest}"),
        None => format!("no node has {text}; one has {newest}"),
    };
    Err(Error::MachineType(why).into())
}

/// The node of the root disk can boot the machine by the firmware that it requests: a daemon of an earlier
/// version does not know the request, and boots it by a BIOS.
pub(super) fn is_booted_there(pass: &Pass<'_>) -> Outcome<()> {
    let home = pass.node_name().filter(|_| pass.root_claim().is_none());
    let node = home.and_then(|home| view::node(pass, &home));
    let wants_uefi = pass.vm.spec.firmware == Some(Firmware::Uefi);
    let Some(node) = node.filter(|node| wants_uefi && !has_uefi(node)) else {
        return Ok(());
    };
    let why = format!(
        "the root disk is on node {}, which cannot boot it by UEFI (it has no label {}={}): install ovmf there and \
         this version of vmlet with its agent, or change the field",
        node.name_any(),
        names::NODE_UEFI,
        names::UEFI_VALUE
    );
    Err(Error::Firmware(why).into())
}

fn has_uefi(node: &Node) -> bool {
    let value = node.labels().get(names::NODE_UEFI);
    value.is_some_and(|value| value == names::UEFI_VALUE)
}

/// Whether a start would get as far as its pod, by what is known while the guest runs.
///
/// # Errors
///
/// What the start would fail with, or wait for.
pub(crate) async fn can_start(pass: &mut Pass<'_>) -> Outcome<()> {
    prerequisites::all(pass).await?;
    if let Some(text) = raised_machine_type(pass)? {
        is_on_node(pass, &text)?;
    }
    is_booted_there(pass)?;
    let volumes = pass.view.preconditions.volumes;
    // CDI fills a volume that waits for its first consumer only when the machine is off.
    let is_filled_then = volumes == Volumes::Provisioning
        && prerequisites::only_wait_for_consumer(pass)
        && !prerequisites::foreign_claim_is_missing(pass);
    if volumes == Volumes::Ready || is_filled_then {
        return Ok(());
    }
    let all = pass.seen().map(|s| s.conditions.as_slice());
    let filled = all.and_then(|all| conditions::find(all, DATA_VOLUMES_READY));
    let unfilled = filled.filter(|condition| condition.status == "False");
    Err(match unfilled {
        // What it is made of may be nothing that is watched.
        Some(why) => Error::Unwatched(why.message.clone()),
        None if volumes == Volumes::Provisioning => Error::NotReady("disks are being made".into()),
        None => Error::Unattached {
            volumes: unattached(pass),
        },
    }
    .into())
}

async fn networks(pass: &mut Pass<'_>) -> Flow {
    match prerequisites::networks(pass).await {
        Ok(()) => Flow::Continue,
        // The network wakes the machine when it appears; one that could not be read does not.
        Err(missing) => {
            let vm = pass.key;
            let why = missing.message;
            tracing::debug!(%vm, why, "machine waits for networks");
            Flow::RequeueAfter(pass.ctx.config.runner.recheck.get())
        }
    }
}

/// Records the size that a new machine begins with.
pub(crate) fn first_size(pass: &mut Pass<'_>) -> Outcome<()> {
    size(pass, false, false).map(|_| ())
}

/// Records the desired hardware of the machine; returns whether it changed.
fn size(pass: &mut Pass<'_>, is_on: bool, starts: bool) -> Outcome<bool> {
    let resize = pass.ctx.config.machines.resize;
    let class = match prerequisites::class(pass) {
        Ok(class) => class,
        Err(Missing { message, .. }) => {
            if resize {
                let kind = CLASS_CONFIGURATION_SYNCED;
                pass.condition(kind, Status::Unknown, "ClassNotFound", &message);
            }
            // A machine that stays off needs no class; one that runs has its own copy.
            return if starts {
                Err(Error::NotReady(message).into())
            } else {
                Ok(false)
            };
        }
    };
    let Some(class) = class else {
        pass.drop_condition(CLASS_CONFIGURATION_SYNCED);
        return Ok(inline(pass, is_on));
    };
    let name = class.name_any();
    let revision = prerequisites::revision(&class);
    let status = pass.seen();
    let last = status.and_then(|s| s.class.clone());
    let last_revision = status.and_then(|s| s.class_revision.clone());
    let sync = match (&last, &last_revision) {
        (Some(last), _) if *last != name => Sync::Resize,
        (_, None) => Sync::Resize,
        (_, Some(last)) if *last == revision => Sync::Equal,
        _ if pass.has(names::SAME_VM_CLASS_RESIZE) => Sync::Resize,
        _ => Sync::Pending("ClassUpdated"),
    };
    let has_started = status.is_some_and(|s| s.hardware.is_some());
    let sync = match sync {
        // Neither class nor revision is recorded: it keeps what it runs with.
        Sync::Resize if resize && is_on && last_revision.is_none() && has_started => {
            Sync::Pending("ClassNameChanged")
        }
        Sync::Resize if is_on && last.as_ref().is_some_and(|l| *l != name) => {
            Sync::Pending("ClassNameChanged")
        }
        Sync::Resize if is_on && last_revision.is_some() => Sync::Pending("SameClassResize"),
        // The first size is no resize.
        Sync::Resize if !resize && last_revision.is_some() => Sync::Pending("ClassNameChanged"),
        other => other,
    };
    let kind = CLASS_CONFIGURATION_SYNCED;
    match sync {
        Sync::Equal => {
            pass.condition(kind, Status::True, "", "");
            Ok(false)
        }
        Sync::Pending(reason) => {
            pass.condition(kind, Status::False, reason, pending(reason, resize));
            Ok(false)
        }
        Sync::Resize => {
            let hardware = &class.spec.hardware;
            let status = pass.status();
            status.class = Some(name);
            status.class_revision = Some(revision);
            status.class_spec = serde_json::to_value(&class.spec).ok();
            status.hardware = Some(HardwareStatus {
                cpus: hardware.cpus,
                memory: Some(hardware.memory.clone()),
            });
            pass.condition(kind, Status::True, "", "");
            Ok(last_revision.is_some())
        }
    }
}

/// What has to happen before the class is taken over.
fn pending(reason: &str, resize: bool) -> &'static str {
    match reason {
        _ if !resize => "machines keep their size: the controller runs with machines.resize off",
        "ClassUpdated" => {
            "the class was edited: annotate the machine with vmlet.dev/same-vm-class-resize to take it over at the \
             next start after a power-off"
        }
        _ => "the machine takes the class over at the next start after a power-off",
    }
}

/// A machine that carries its size itself.
fn inline(pass: &mut Pass<'_>, is_on: bool) -> bool {
    let Some(own) = pass.vm.spec.hardware.clone().filter(|_| !is_on) else {
        return false;
    };
    let wanted = HardwareStatus {
        cpus: own.cpus,
        memory: Some(own.memory),
    };
    let status = pass.status();
    (status.class, status.class_revision, status.class_spec) = (None, None, None);
    let had = status.hardware.replace(wanted.clone());
    had.is_some_and(|had| had != wanted)
}

/// A start that disks hold up.
fn detached(pass: &Pass<'_>) -> Outcome<()> {
    match pass.view.preconditions.volumes {
        Volumes::ClaimNotFound | Volumes::Unbound => {
            let volumes = unattached(pass);
            Err(Error::Unattached { volumes }.into())
        }
        // Their own events wake the machine, and time where a data volume is made from what nothing watches.
        _ => Ok(()),
    }
}

/// The volumes without a claim that is bound, each with the reason.
fn unattached(pass: &Pass<'_>) -> String {
    let all = pass.seen().map(|s| s.volumes.clone()).unwrap_or_default();
    let volumes: Vec<_> = all
        .iter()
        .filter_map(|v| Some(format!("{} ({})", v.name, v.error.as_deref()?)))
        .collect();
    volumes.join(", ")
}
