//! Tasks of nodes, for machines and for images.
//!
//! Invariant: a task's name follows from what it is for, so that the same desired state never
//! becomes two tasks.
//! Failure: what the API server reports of a deletion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{TaskKind, VirtualMachineTask, names};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use sha2::{Digest, Sha256};

use super::answers::{is_conflict, is_gone};
use super::vm::error::Error;
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError};

/// Longest part of a machine's name in a task's name.
const LONGEST_NAME: usize = 200;

/// Name of the task of that kind; `seed` distinguishes one desired result from the next.
pub(crate) fn name(vm: &str, kind: TaskKind, seed: &str) -> String {
    let cut = vm.len().min(LONGEST_NAME);
    let vm = vm.get(..cut).unwrap_or_default();
    let digest = Sha256::digest(seed.as_bytes());
    let hash: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
    let kind: &str = kind.into();
    format!("{vm}-{kind}-{hash}")
}

/// The labels of every task: one that a backup tool restores would run again.
pub(crate) fn labels() -> BTreeMap<String, String> {
    [(names::EXCLUDE_FROM_BACKUP.to_owned(), "true".to_owned())].into()
}

/// Whose tasks on this node have not ended.
pub(crate) fn waiting(ctx: &Context, node: &str) -> BTreeSet<Key> {
    let all = ctx.stores.tasks.state().into_iter();
    let of_machine = |task: &Arc<VirtualMachineTask>| !task.spec.kind.is_of_image();
    all.filter(|task| task.spec.node_name == node && !task.is_final())
        .filter(of_machine)
        .map(|task| Key::new(task.vm_namespace(), &task.spec.vm_name))
        .collect()
}

/// Deletes a task of any machine or image as it is known: one that changed meanwhile stays, and its
/// event is on its way.
pub(crate) async fn remove_unchanged(ctx: &Context, task: &VirtualMachineTask) -> Outcome<()> {
    delete(ctx, task, task.resource_version()).await
}

/// Deletes a task; success when it no longer exists, being deleted or another.
pub(crate) async fn remove(ctx: &Context, task: &VirtualMachineTask) -> Outcome<()> {
    delete(ctx, task, None).await
}

async fn delete(
    ctx: &Context,
    task: &VirtualMachineTask,
    resource_version: Option<String>,
) -> Outcome<()> {
    if task.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let only_this = DeleteParams::background().preconditions(Preconditions {
        uid: task.uid(),
        resource_version,
    });
    let name = task.name_any();
    let namespace = task.namespace().unwrap_or_default();
    let api = Api::<VirtualMachineTask>::namespaced(ctx.client.clone(), &namespace);
    match api.delete(&name, &only_this).await {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) || is_conflict(&error) => Ok(()),
        Err(source) => Err(failed(&name, source)),
    }
}

/// Seconds since it ended. The end is a time of the node's clock: one before the task was made, or
/// in the future, shows that the clock is wrong, and the task's own age counts.
pub(crate) fn age(task: &VirtualMachineTask, now: i64) -> Option<i64> {
    let ended = task
        .status
        .as_ref()?
        .completion_time
        .as_ref()?
        .0
        .as_second();
    let made = task.metadata.creation_timestamp.as_ref();
    let made = made.map_or(ended, |at| at.0.as_second());
    let is_right = made <= ended && ended <= now;
    Some(now - if is_right { ended } else { made })
}

/// The failure of a write to a task.
pub(crate) fn failed(name: &str, source: kube::Error) -> PassError {
    let name = name.to_owned();
    Error::WriteTask { name, source }.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Made at 1000; its node's clock may be wrong by an hour.
    #[test]
    fn a_wrong_node_clock_does_not_change_the_next_attempt() {
        let at = |seconds| jiff::Timestamp::from_second(seconds).unwrap();
        let ended = |seconds: i64| -> VirtualMachineTask {
            serde_json::from_value(json!({
                "metadata": { "name": "t", "creationTimestamp": at(1000).to_string() },
                "spec": { "nodeName": "n", "vmName": "vm", "vmUID": "u", "kind": "Save" },
                "status": { "state": "Error", "completionTime": at(seconds).to_string() },
            }))
            .unwrap()
        };
        assert_eq!(age(&ended(1100), 1130), Some(30));
        assert_eq!(age(&ended(1100 + 3600), 1130), Some(130));
        assert_eq!(age(&ended(1100 - 3600), 1130), Some(130));
        let mut task = ended(1100);
        task.status = None;
        assert_eq!(age(&task, 1130), None);
    }

    #[test]
    fn a_task_for_another_desired_state_has_another_name_and_a_long_name_fits() {
        let one = name("vm", TaskKind::GuestShutdown, "pod-1");
        assert!(
            one.starts_with("vm-guest-shutdown-") && one.len() == 26,
            "{one}"
        );
        assert_ne!(one, name("vm", TaskKind::GuestShutdown, "pod-2"));
        let long = "x".repeat(253);
        assert!(name(&long, TaskKind::DeleteSnapshot, "").len() <= 253);
    }
}
