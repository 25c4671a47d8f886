//! The current step of a machine, as a short text.
//!
//! Invariant: the nearest to the end wins: a task, then the machine's pod, then its placeholder,
//! then what a start waits for. The steps of a creation and a start come in one order, whichever of
//! the objects is seen first.
//! Failure: nothing to say is an empty text.

use crds::conditions::{FAILURE, IMAGE_CACHE_READY, PLACEMENT_READY, READY, SOURCE_READY, find};
use crds::vm::PrintableStatus as Word;
use crds::{TaskKind, TaskState, VirtualMachine, VirtualMachineTask, names};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::Around;

/// Such as `Provision 43%`, `pulling the image`, `booting`.
pub(crate) fn progress(vm: &VirtualMachine, around: &Around, now: Timestamp) -> String {
    let status = vm.status.clone().unwrap_or_default();
    if let Some(task) = around.tasks.iter().find_map(of_task) {
        return task;
    }
    if status.printable_status == Some(Word::Provisioning) && around.tasks.iter().any(made_disk) {
        return "Provision 100%".to_owned();
    }
    match status.printable_status {
        // The disk is made, and the place is held.
        Some(Word::Starting) if nearest(around).is_some_and(is_placeholder) => "starting".into(),
        Some(Word::Running) if !status.ready => probe(vm).unwrap_or_else(|| "booting".into()),
        Some(Word::CrashLoopBackOff) => {
            let is_clean = status
                .instance
                .is_some_and(|last| last.exit_code == Some(0));
            let failure = status.start_failure.unwrap_or_default();
            let retry = failure
                .retry_after_timestamp
                .map_or(0, |at| at.0.duration_since(now).as_secs().max(0));
            let what = match failure.consecutive_fail_count {
                _ if is_clean => "the guest powered itself off".to_owned(),
                0 | 1 => "failed once".to_owned(),
                count => format!("failed {count} times"),
            };
            format!("{what}, next start in {retry}s")
        }
        Some(Word::Starting | Word::Provisioning | Word::WaitingForVolumeBinding) => {
            turn(vm, around)
                .or_else(|| nearest(around).map(of_pod))
                .filter(|text| !text.is_empty())
                .or_else(|| failure(vm))
                .unwrap_or_default()
        }
        Some(word) if is_error(word) => failure(vm).or_else(|| obstacle(vm)).unwrap_or_default(),
        Some(Word::Stopping | Word::Terminating) => timeout(around).unwrap_or_default(),
        _ => String::new(),
    }
}

/// Where a machine waits for others whose disks are made first. Its node has the image by then, and is on
/// record only when it begins with this disk.
fn turn(vm: &VirtualMachine, around: &Around) -> Option<String> {
    let text = "waits for its turn to make the disk";
    let pod = nearest(around);
    if pod.is_none() && may_wait_for_its_turn(vm) {
        return Some(text.to_owned());
    }
    let holder = pod.filter(|pod| is_placeholder(pod) && runs(pod) && has_no_node(vm))?;
    let node = holder.spec.as_ref()?.node_name.as_deref()?;
    Some(format!("{text} on node {node}"))
}

/// Whether its conditions say that nothing but its turn is missing. They may be those of a place that was
/// given up, which its placeholder shows.
pub(super) fn may_wait_for_its_turn(vm: &VirtualMachine) -> bool {
    let status = vm.status.clone().unwrap_or_default();
    let is_true = |kind| find(&status.conditions, kind).is_some_and(|c| c.status == "True");
    status.printable_status == Some(Word::Provisioning)
        && has_no_node(vm)
        && [PLACEMENT_READY, IMAGE_CACHE_READY]
            .into_iter()
            .all(is_true)
}

fn has_no_node(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    status.is_none_or(|status| status.node_name.is_none())
}

/// What the readiness probe says of a guest that runs and is not ready, if there is one.
fn probe(vm: &VirtualMachine) -> Option<String> {
    let ready = find(&vm.status.as_ref()?.conditions, READY)?;
    let is_probed = ready.status == "False" && ready.message.contains("probe");
    is_probed.then(|| ready.message.clone())
}

/// Until when a guest that is requested to power off may take.
fn timeout(around: &Around) -> Option<String> {
    let pods = around.pods.iter();
    let until = pods
        .filter_map(|pod| pod.metadata.deletion_timestamp.as_ref())
        .max()?;
    let time = until.0.strftime("%H:%M:%S UTC");
    Some(format!("asked to power off, has time until {time}"))
}

const fn is_error(word: Word) -> bool {
    matches!(
        word,
        Word::ErrorPvcNotFound
            | Word::DataVolumeError
            | Word::ErrorUnschedulable
            | Word::ErrorClass
            | Word::ErrorImage
            | Word::ErrorStorage
            | Word::ErrorBootstrap
            | Word::ErrorNetwork
            | Word::ErrImagePull
            | Word::ImagePullBackOff
            | Word::InvalidImageName
    )
}

fn failure(vm: &VirtualMachine) -> Option<String> {
    let conditions = &vm.status.as_ref()?.conditions;
    find(conditions, FAILURE).map(|condition| condition.message.clone())
}

/// Why the pod does not make progress, as the scheduler and kubelet report it.
fn obstacle(vm: &VirtualMachine) -> Option<String> {
    let conditions = &vm.status.as_ref()?.conditions;
    let mut all = [SOURCE_READY, PLACEMENT_READY, IMAGE_CACHE_READY, READY].iter();
    all.find_map(|kind| find(conditions, kind).filter(|c| c.status == "False"))
        .map(|condition| condition.message.clone())
}

fn of_task(task: &VirtualMachineTask) -> Option<String> {
    let kind = task.spec.kind;
    let status = task.status.clone().unwrap_or_default();
    match status.state {
        None | Some(TaskState::Queued) => Some(format!("{kind:?} waits for its node")),
        Some(TaskState::Running) => Some(format!("{kind:?} {}%", status.progress_percent)),
        Some(TaskState::Error) if status.transient => {
            Some(format!("{kind:?} failed, is tried again"))
        }
        Some(_) => None,
    }
}

/// The controller has not recorded yet that the disk is made.
fn made_disk(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|status| status.state);
    let makes_disk = matches!(
        task.spec.kind,
        TaskKind::Provision | TaskKind::CloneDisk | TaskKind::RestoreBackup
    );
    makes_disk && state == Some(TaskState::Success)
}

/// The machine's pod, else its placeholder.
fn nearest(around: &Around) -> Option<&Pod> {
    around.pods.iter().min_by_key(|pod| is_placeholder(pod))
}

fn is_placeholder(pod: &Pod) -> bool {
    let role = pod.labels().get(names::POD_ROLE_LABEL);
    role.is_some_and(|role| role == "provision")
}

fn runs(pod: &Pod) -> bool {
    container_state(pod).running.is_some()
}

fn container_state(pod: &Pod) -> ContainerState {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let first = containers.and_then(|all| all.first());
    first.and_then(|c| c.state.clone()).unwrap_or_default()
}

/// What a pod that does not run its machine yet is at.
fn of_pod(pod: &Pod) -> String {
    // Its node was chosen, and its image is in its disk.
    let has_disk = pod.annotations().contains_key(names::VM_DISK);
    let state = container_state(pod);
    let has_node = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
    let waiting = state.waiting.unwrap_or_default();
    match waiting.reason.as_deref() {
        _ if state.running.is_some() && is_placeholder(pod) => "making the disk".into(),
        _ if state.running.is_some() => "booting".into(),
        _ if state.terminated.is_some() => String::new(),
        Some("ContainerCreating") | None if has_disk => "starting".into(),
        Some("ContainerCreating") | None if has_node => "getting the image".into(),
        Some(reason) if has_node => match waiting.message {
            Some(message) => format!("{reason}: {message}"),
            None => reason.to_owned(),
        },
        _ => "looking for a node".into(),
    }
}

#[cfg(test)]
mod tests;
